"""Iceberg's catalogs by the library that knows them, and what may go wrong on the way there.

The library's clients have no time limit, or a fixed one: a catalog that takes a request and
falls silent would hold the sink for ever. So they are given the sink's, each in its own way:

    rest             requests of its sessions, for the connection and for each read of an answer
    hive             sockets of its Thrift client, likewise
    sql              what the driver of PostgreSQL or MySQL knows, where the URI does not say it:
                     connecting, what is not acknowledged, and MySQL's reads and writes; how long a
                     statement may take, PostgreSQL's own `statement_timeout` says: set it for the
                     role, for poolers refuse a connection that brings it along
    glue, dynamodb   botocore's default, 60 s for the connection and for each read
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa

from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Retryable,
)
from penstock.router.job.config_errors import needed
from penstock.router.sinks.table_format import classify_status

_LIMIT: Final = "penstock.timeout-s"
_STATUS: Final = re.compile(r"HTTP status (\d{3})\b")
_OF_CLIENTS: Final = (
    ("botocore.exceptions", ("BotoCoreError", "ClientError")),  # Glue, DynamoDB
    ("thrift.Thrift", ("TException",)),  # Hive
)
"""Errors of clients of catalogs that the library passes on, by module; extras bring them."""
_AWS_PASSES: Final = re.compile(
    r"Throttl|TooManyRequests|RequestLimit|Unavailable|Internal|Timeout|Concurrent"
    r"|EndpointConnection|ConnectionClosed|ConnectionError|HTTPClientError|ProxyConnection"
)


class SettingError(ValueError):
    """The settings of the catalog make no sense to the library, or to the catalog."""


def connected(name: str, properties: Mapping[str, str], timeout_s: float) -> Any:
    """A catalog that no request waits longer for than `timeout_s`, as far as its client knows how.

    Raises:
        ValueError: The library cannot make sense of the properties.
        OSError: There is no answer.
    """
    catalogs = needed("pyiceberg.catalog", extra="iceberg")
    kinds = {"REST": _rest, "HIVE": _hive, "SQL": _sql}
    for kind, made in kinds.items():
        catalogs.AVAILABLE_CATALOGS[catalogs.CatalogType[kind]] = made
    return catalogs.load_catalog(name, **{_LIMIT: str(timeout_s), **properties})


@contextmanager
def blaming_settings(properties: Mapping[str, str]) -> Iterator[None]:
    """Around what is done before there is a record: a value that is wrong is one of a setting.

    Raises:
        SettingError: Instead of a ValueError; it repeats no property, for that may be a secret.
    """
    try:
        yield
    except OSError:  # of the way there; some are ValueErrors as well
        raise
    except ValueError as error:
        said = str(error)
        for value in sorted(filter(None, properties.values()), key=len, reverse=True):
            said = said.replace(value, "***")
        raise SettingError(f"the catalog cannot be used: {said}") from None


def _rest(name: str, properties: Mapping[str, str]) -> Any:
    """A REST catalog with limited sessions; without our property there is no limit, as before."""
    rest = needed("pyiceberg.catalog.rest", extra="iceberg")

    def with_limit(self: Any, session: Any) -> None:
        limit = self.properties.get(_LIMIT)
        if limit is not None:
            session.request = partial(session.request, timeout=float(limit))
        rest.RestCatalog._config_headers(self, session)  # noqa: SLF001 - the first to see a session

    made: Callable[..., Any] = type(
        "LimitedRestCatalog", (rest.RestCatalog,), {"_config_headers": with_limit}
    )
    return made(name, **properties)


def _hive(name: str, properties: Mapping[str, str]) -> Any:
    """A catalog of Hive whose sockets have limits; it connects for each call."""
    catalog = needed("pyiceberg.catalog", extra="iceberg").load_hive(name, dict(properties))
    limit = properties.get(_LIMIT)
    if limit is None:
        return catalog
    client = catalog._client  # noqa: SLF001 - there is no other way to its sockets
    connect = client._init_thrift_transport  # noqa: SLF001

    def limited() -> Any:
        return _with_limit(connect(), float(limit))

    client._init_thrift_transport = limited  # noqa: SLF001
    _with_limit(client._transport, float(limit))  # noqa: SLF001 - the first one is made already
    return catalog


def _with_limit(transport: Any, limit_s: float) -> Any:
    """A Thrift transport whose socket, which it keeps under its own name, has a limit."""
    sockets = [it for it in vars(transport).values() if hasattr(it, "setTimeout")]
    assert sockets, f"{type(transport).__name__} holds no socket"
    for socket in sockets:
        socket.setTimeout(max(round(limit_s * 1000), 1))
    return transport


def _sql(name: str, properties: Mapping[str, str]) -> Any:
    """A catalog in a database; without our property its URI is left as it is."""
    given, limit = dict(properties), properties.get(_LIMIT)
    if limit is not None and "uri" in given:
        given["uri"] = limited_uri(given["uri"], float(limit))
    return needed("pyiceberg.catalog", extra="iceberg").load_sql(name, given)


def limited_uri(uri: str, limit_s: float) -> str:
    """A database's URI with the limits that its driver knows and the URI does not have.

    Raises:
        ValueError: It is none.
    """
    alchemy = needed("sqlalchemy", extra="iceberg")
    try:
        url = alchemy.make_url(uri)
    except (alchemy.exc.ArgumentError, ValueError):  # whose words are parts of it
        raise ValueError(
            "uri: it cannot be read; write it as DIALECT+DRIVER://USER:PASSWORD@HOST:PORT/DATABASE,"
            " and each of @ : / ? # % in the password percent-encoded (@ is %40)"
        ) from None
    seconds, ms = str(max(round(limit_s), 2)), str(max(round(limit_s * 1000), 1))
    driver = url.drivername.partition("+")[2] or {"postgresql": "psycopg2", "mysql": "mysqldb"}.get(
        url.drivername, ""
    )
    known = {
        "psycopg": _of_libpq(seconds, ms),
        "psycopg2": _of_libpq(seconds, ms),
        "pymysql": dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds),
        "mysqldb": dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds),
    }.get(driver, {})
    missing = {key: value for key, value in known.items() if key not in url.query}
    limited: str = url.update_query_dict(missing).render_as_string(hide_password=False)
    return limited


def _of_libpq(seconds: str, ms: str) -> dict[str, str]:
    return {"connect_timeout": seconds, "tcp_user_timeout": ms}


def client_errors() -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = []
    for module, names in _OF_CLIENTS:
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            continue  # so none of its errors can come
        found += [getattr(loaded, name) for name in names]
    return tuple(found)


def classify_client_error(error: Exception, said: str) -> DeliveryResult:
    """Return the result of a client's error: it concerns the catalog, and no record."""
    told: Any = getattr(error, "response", None)
    if not isinstance(told, dict):
        aws = type(error).__module__.startswith("botocore")
        names = " ".join(it.__name__ for it in type(error).__mro__)
        return Paused(said) if aws and not _AWS_PASSES.search(names) else Retryable(said)
    status = told.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(told.get("Error", {}).get("Code", ""))
    passes = _AWS_PASSES.search(code) is not None or status == 429 or status >= 500
    return Retryable(said) if passes else Paused(said)


def classify_store_error(error: Exception, said: str) -> DeliveryResult:
    """Return the result for the rows of a commit that the store failed."""
    found = _STATUS.search(said)
    status = int(found[1]) if found else 0
    fault = Fault(f"http_{status}" if status else "iceberg", said, status)
    if (result := classify_status(status, said, fault)) is not None:
        return result
    if isinstance(error, PermissionError | FileNotFoundError) or "ACCESS_DENIED" in said:
        return Paused(said)
    if isinstance(error, OSError):
        wrong = isinstance(error, ValueError) and not isinstance(error, pa.ArrowException)
        return (
            Paused(said) if wrong else Retryable(said)
        )  # a URL that is none, an answer that is no JSON
    return Failed(fault)
