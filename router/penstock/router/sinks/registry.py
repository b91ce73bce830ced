"""Registry of sinks by `type`: those that come with the router, and third parties'.

A third party adds one with an entry point; its name is the `type`, its value the sink's class:

    [project.entry-points."penstock.router.sinks"]
    pigeon = "acme.pigeon:PigeonSink"

A module is imported when its type is used, or everything is listed. The router's own names cannot
be taken over.
"""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from penstock.router.job.config_errors import MissingLibraryError, WrongKeyError
from penstock.router.job.settings import SinkConfig
from penstock.router.sinks.sink import Sink, SinkContext
from penstock.service import naming_known_keys

GROUP: Final = "penstock.router.sinks"

_OWN: Final = {
    "bigquery": "penstock.router.sinks.bigquery.sink:BigQuery",
    "clickhouse": "penstock.router.sinks.clickhouse:ClickHouse",
    "console": "penstock.router.sinks.console:Console",
    "datadog": "penstock.router.sinks.datadog.sink:Datadog",
    "delta": "penstock.router.sinks.delta:Delta",
    "elasticsearch": "penstock.router.sinks.elasticsearch.sink:Elasticsearch",
    "google_cloud_logging": "penstock.router.sinks.google_cloud_logging:CloudLogging",
    "http": "penstock.router.sinks.http.sink:HttpPost",
    "iceberg": "penstock.router.sinks.iceberg.sink:Iceberg",
    "jdbc": "penstock.router.sinks.jdbc.sink:Jdbc",
    "kafka": "penstock.router.sinks.kafka.sink:Kafka",
    "loki": "penstock.router.sinks.loki:Loki",
    "nats": "penstock.router.sinks.nats.sink:NatsSubject",
    "otlp": "penstock.router.sinks.otlp.sink:Otlp",
    "parquet": "penstock.router.sinks.parquet.sink:ParquetLake",
    "postgres": "penstock.router.sinks.postgres:Postgres",
    "prometheus": "penstock.router.sinks.prometheus:PrometheusWrite",
    "s3": "penstock.router.sinks.s3:S3",
    "splunk_hec": "penstock.router.sinks.splunk_hec:SplunkHec",
}


@dataclass(frozen=True, slots=True)
class SinkKind:
    """The class and settings of a `type`.

    Attributes:
        name: The `type` in a job file.
        package: The distribution that brings it.
    """

    name: str
    config: type[SinkConfig]
    sink: type[Sink]
    package: str


def known_types() -> list[str]:
    """Every `type` there is, without importing any of them."""
    return sorted({*_OWN, *(entry.name for entry in _entries())})


def sink_kind(name: str) -> SinkKind:
    """Return the class and settings of a `type`.

    Raises:
        ValueError: There is none of that name, two packages bring one, or it cannot be loaded.
    """
    if path := _OWN.get(name):
        module, _, attribute = path.partition(":")
        return _kind(name, getattr(importlib.import_module(module), attribute), "penstock")
    found = [entry for entry in _entries() if entry.name == name]
    if not found:
        raise ValueError(f"there is no sink of type {name!r}, only {', '.join(known_types())}")
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        raise ValueError(f"sinks of type {name!r} come with {packages}; uninstall all but one")
    package = _package(found[0])
    try:
        return _kind(name, found[0].load(), package)
    except Exception as error:  # a package's module may raise anything when it is imported
        raise ValueError(
            f"the sink {name!r} of the package {package} cannot be loaded:"
            f" {type(error).__name__}: {error}; correct, upgrade or uninstall the package"
        ) from error


def sink_kinds() -> Iterator[SinkKind]:
    """Every kind, in the order of the names."""
    return map(sink_kind, known_types())


def open_sink(config: SinkConfig, context: SinkContext) -> Sink:
    """Make a sink and open it.

    Raises:
        ConfigError: The destination cannot be used.
    """
    with _named(context.sink):
        sink = make_sink(config, context)
        sink.open()
    return sink


def make_sink(config: SinkConfig, context: SinkContext) -> Sink:
    """Make a sink without opening it.

    Raises:
        ConfigError: It cannot be used.
    """
    with _named(context.sink):
        return sink_kind(config.type).sink(config, context)


@contextmanager
def _named(sink: str) -> Iterator[None]:
    """A library that is missing is missed by a sink."""
    try:
        yield
    except MissingLibraryError as error:
        raise WrongKeyError(f"sinks.{sink}: {error.reason}", fix=error.fix) from error


def guarantees() -> list[str]:
    """The lines of the documents' table."""
    rows = [f"| `{kind.name}` | {kind.sink.guarantee} |" for kind in sink_kinds()]
    return ["| sink | on replay after a crash |", "|---|---|", *rows]


def _parse(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    name = value.get("type")
    if not isinstance(name, str):
        known = ", ".join(known_types())
        raise ValueError(f"`type` must say which kind of sink it is: {known}")  # noqa: TRY004 - pydantic takes it
    model = sink_kind(name).config
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise naming_known_keys(error, model) from None


AnySinkConfig = Annotated[SerializeAsAny[SinkConfig], BeforeValidator(_parse)]
"""The settings of some sink in a job file; `type` decides which."""


def _entries() -> list[EntryPoint]:
    return [entry for entry in entry_points(group=GROUP) if entry.name not in _OWN]


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def _kind(name: str, sink: Any, package: str) -> SinkKind:
    is_class: bool = inspect.isclass(sink)
    if not (is_class and all(hasattr(sink, it) for it in _NEEDED)):
        raise TypeError(f"{sink!r} is not a sink: it needs {', '.join(_NEEDED)}")
    config: Any = sink.config_class
    if not (isinstance(config, type) and issubclass(config, SinkConfig)):
        raise TypeError(f"{sink.__name__}.config_class must derive from SinkConfig")
    return SinkKind(name, config, sink, package)


_NEEDED: Final = ("config_class", "guarantee", "columns", "open", "write", "preview", "close")
