"""What errors on the way to an Iceberg catalog mean: none of them is a record's fault."""

import sys
from types import ModuleType

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from requests.exceptions import ConnectTimeout, InvalidURL
from sqlalchemy import make_url

from penstock.router.delivery.result import Failed, Paused, Retryable, TooLarge
from penstock.router.sinks.iceberg.client import (
    SettingError,
    blaming_settings,
    classify_client_error,
    classify_store_error,
    client_errors,
    connected,
    limited_uri,
)


def of_aws(code: str, status: int) -> ClientError:
    told = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "GetTable")


class MetastoreError(Exception):
    """As Hive's client raises one; thrift's exceptions derive from one of their own."""


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (of_aws("AccessDeniedException", 400), Paused),
        (of_aws("ExpiredTokenException", 400), Paused),
        (of_aws("ThrottlingException", 400), Retryable),
        (of_aws("ConcurrentModificationException", 400), Retryable),
        (of_aws("InternalServiceException", 500), Retryable),
        (of_aws("Odd", 503), Retryable),
        (NoCredentialsError(), Paused),
        (EndpointConnectionError(endpoint_url="https://glue"), Retryable),
        (ReadTimeoutError(endpoint_url="https://glue"), Retryable),
        (MetastoreError("the metastore's database is away"), Retryable),
    ],
    ids=repr,
)
def test_a_client_of_a_catalog_says_whether_somebody_must_correct_something(
    error: Exception, verdict: type
) -> None:
    assert type(classify_client_error(error, str(error))) is verdict


def test_errors_of_every_client_that_is_installed_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thrift = ModuleType("thrift.Thrift")
    thrift.TException = MetastoreError  # type: ignore[attr-defined]
    # The extra does not hold Thrift, which somebody may have beside it: both cases are made here.
    monkeypatch.setitem(sys.modules, "thrift", ModuleType("thrift"))
    monkeypatch.setitem(sys.modules, "thrift.Thrift", thrift)  # as above
    assert isinstance(NoCredentialsError(), client_errors())
    assert isinstance(of_aws("X", 400), client_errors())
    assert isinstance(MetastoreError(), client_errors())
    monkeypatch.setitem(sys.modules, "thrift.Thrift", None)  # as where it is not installed
    assert not isinstance(MetastoreError(), client_errors())


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectTimeout("no answer"), Retryable),
        (InvalidURL("no URL"), Paused),
        (PermissionError("no"), Paused),
        (OSError("When reading: HTTP status 403"), Paused),
        (OSError("When writing: HTTP status 503"), Retryable),
        (OSError("HTTP status 413"), TooLarge),
        (ValueError("of a row, perhaps"), Failed),
    ],
    ids=repr,
)
def test_a_store_that_fails_is_waited_for(error: Exception, verdict: type) -> None:
    assert type(classify_store_error(error, str(error))) is verdict


def test_a_setting_that_is_wrong_is_said_without_what_it_says() -> None:
    with pytest.raises(SettingError) as caught, blaming_settings({"token": "hush", "none": ""}):
        raise ValueError("properties: {'token': 'hush'}")
    assert str(caught.value) == "the catalog cannot be used: properties: {'token': '***'}"
    with pytest.raises(InvalidURL), blaming_settings({}):
        raise InvalidURL("the way there")


class Socket:
    """As Thrift's `TSocket`, as far as the library and we know it."""

    def __init__(self) -> None:
        self.limit_ms: float | None = None

    def setTimeout(self, ms: float) -> None:  # noqa: N802 - Thrift's name
        self.limit_ms = ms


class Transport:
    """As Thrift's transports, which keep their socket under a private name."""

    def __init__(self, socket: Socket) -> None:
        self.__trans = socket

    def limit_ms(self) -> float | None:
        return self.__trans.limit_ms


class HiveClient:
    def __init__(self) -> None:
        self._transport = self._init_thrift_transport()

    def _init_thrift_transport(self) -> Transport:
        return Transport(Socket())


class HiveCatalog:
    """As the library's, which makes a transport when it is made and one for each later call."""

    def __init__(self, name: str, **properties: str) -> None:
        self._client = HiveClient()


def test_every_connection_to_hive_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pyiceberg.catalog.hive")
    module.HiveCatalog = HiveCatalog  # type: ignore[attr-defined]
    # pyiceberg's own module needs Thrift, which the extra does not hold.
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.hive", module)
    catalog = connected("lake", {"type": "hive", "uri": "thrift://127.0.0.1:1"}, 2.5)
    client = catalog._client  # noqa: SLF001 - pyiceberg shows its client nowhere else
    first, later = client._transport, client._init_thrift_transport()  # noqa: SLF001 - nor its transports
    assert (first.limit_ms(), later.limit_ms()) == (2500, 2500)


@pytest.mark.parametrize(
    ("uri", "limited"),
    [
        (
            "postgresql+psycopg2://me:secret@db/lake",
            {
                "connect_timeout": "2",
                "tcp_user_timeout": "2500",
            },
        ),
        (
            "postgresql://me@db/lake?connect_timeout=10&options=-c%20statement_timeout%3D1",
            {
                "connect_timeout": "10",
                "tcp_user_timeout": "2500",
                "options": "-c statement_timeout=1",
            },
        ),
        (
            "mysql+pymysql://db/lake",
            {"connect_timeout": "2", "read_timeout": "2", "write_timeout": "2"},
        ),
        ("sqlite:////tmp/lake.db", {}),
    ],
)
def test_a_database_has_the_limits_that_its_driver_knows(uri: str, limited: dict[str, str]) -> None:
    found = make_url(limited_uri(uri, 2.5))
    assert dict(found.query) == limited
    assert found.password == make_url(uri).password


@pytest.mark.parametrize(
    "uri", ["no uri", "postgresql+psycopg://u:hush@hush:hush@h/db", "postgresql://u:hush@h:hush/db"]
)
def test_a_uri_that_is_none_is_told_of_without_a_part_of_it(uri: str) -> None:
    """The library takes what stands behind an @ in the password for the host and its port."""
    with (
        pytest.raises(SettingError, match=r"uri: it cannot be read.*percent-encoded") as told,
        blaming_settings({"uri": uri}),
    ):
        limited_uri(uri, 1.0)
    assert "hush" not in str(told.value)
