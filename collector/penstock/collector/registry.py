"""Registry of sources and transforms by `type`: the collector's own, and third parties'.

A third party adds one with an entry point; its name is the `type`, its value the class:

    [project.entry-points."penstock.collector.transforms"]
    geoip = "acme.geoip:GeoIp"

A module is imported when its type is used, or everything is listed. The collector's own names
cannot be taken over.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final, Union

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, SerializeAsAny, TypeAdapter
from pydantic import ValidationError as PydanticError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from penstock.collector.sources.settings import Section, SourceSettings
from penstock.collector.transforms.transform import TransformSettings
from penstock.service import naming_known_keys


@dataclass(frozen=True, slots=True)
class Kind:
    """The class and the settings of one `type`.

    Attributes:
        name: The `type` in a configuration.
        settings: The model of its settings.
        factory: Its class; `from_settings` makes one.
        package: The distribution that brings it, with its version.
    """

    name: str
    settings: type[Section]
    factory: Any
    package: str


class Registry:
    """The types of one part of the configuration.

    Args:
        noun: Name of one item in messages.
        group: The entry points' group.
        own: The collector's own: type to ``module:class``.
        base: Base class of settings.
        needed: Methods that a class must have.
    """

    def __init__(
        self,
        noun: str,
        group: str,
        own: Mapping[str, str],
        *,
        base: type[Section],
        needed: Sequence[str],
    ) -> None:
        self.noun = noun
        self.group = group
        self._own = own
        self._base = base
        self._needed = ("settings", "from_settings", *needed)

    def types(self) -> list[str]:
        """Every `type` there is, without importing any of them."""
        return sorted({*self._own, *(entry.name for entry in self._entries())})

    def is_own(self, name: str) -> bool:
        return name in self._own

    def kind(self, name: str) -> Kind:
        """Return what serves a `type`.

        Raises:
            ValueError: There is none of that name, two packages bring one, or it cannot be loaded.
        """
        if path := self._own.get(name):
            module, _, attribute = path.partition(":")
            return self._kind(name, getattr(importlib.import_module(module), attribute), "penstock")
        found = [entry for entry in self._entries() if entry.name == name]
        if not found:
            known = ", ".join(self.types())
            raise ValueError(f"there is no {self.noun} of type {name!r}, only {known}")
        if len(found) > 1:
            packages = " and ".join(sorted(map(_package, found)))
            raise ValueError(
                f"{self.noun}s of type {name!r} come with {packages}; uninstall all but one"
            )
        package = _package(found[0])
        try:
            return self._kind(name, found[0].load(), package)
        except Exception as error:  # a package's module may raise anything when it is imported
            raise ValueError(
                f"the {self.noun} {name!r} of the package {package} cannot be loaded:"
                f" {type(error).__name__}: {error}; correct, upgrade or uninstall the package"
            ) from error

    def kinds(self) -> Iterator[Kind]:
        """Every kind, in the order of the names.

        Raises:
            ValueError: One cannot be loaded.
        """
        return map(self.kind, self.types())

    def parse(self, value: Any) -> Any:
        """The settings of the type that a mapping names.

        Raises:
            ValueError: The type is unknown or cannot be loaded, or the settings are wrong.
        """
        if not isinstance(value, dict):
            return value
        name = value.get("type")
        if not isinstance(name, str):
            known = ", ".join(self.types())
            raise ValueError(f"`type` must say which kind of {self.noun} it is: {known}")  # noqa: TRY004 - pydantic takes it
        model = self.kind(name).settings
        try:
            return model.model_validate(value)
        except PydanticError as error:
            raise naming_known_keys(error, model) from None

    def _entries(self) -> list[EntryPoint]:
        return [entry for entry in entry_points(group=self.group) if entry.name not in self._own]

    def _kind(self, name: str, factory: Any, package: str) -> Kind:
        missing = [it for it in self._needed if not hasattr(factory, it)]
        is_class: bool = inspect.isclass(factory)
        if not is_class or missing:
            lacks = f"it lacks {', '.join(missing)}" if missing else "it is no class"
            raise TypeError(f"{factory!r} is not a {self.noun}: {lacks}")
        settings: Any = factory.settings
        if not (isinstance(settings, type) and issubclass(settings, self._base)):
            raise TypeError(f"{factory.__name__}.settings must derive from {self._base.__name__}")
        return Kind(name, settings, factory, package)


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


SOURCES: Final = Registry(
    "source",
    "penstock.collector.sources",
    {
        "datadog": "penstock.collector.sources.senders.datadog:DatadogSource",
        "elasticsearch": "penstock.collector.sources.senders.elasticsearch:ElasticsearchSource",
        "exec": "penstock.collector.sources.exec:ExecSource",
        "file": "penstock.collector.sources.files.source:FileSource",
        "forward": "penstock.collector.sources.forward.source:ForwardSource",
        "host_metrics": "penstock.collector.sources.host_metrics:HostMetricsSource",
        "http": "penstock.collector.sources.http:HttpSource",
        "journald": "penstock.collector.sources.journald:JournaldSource",
        "kubernetes_events": "penstock.collector.sources.kubernetes_events:KubernetesEventsSource",
        "loki": "penstock.collector.sources.senders.loki:LokiSource",
        "otlp": "penstock.collector.sources.otlp.source:OtlpSource",
        "prometheus": "penstock.collector.sources.prometheus.source:PrometheusSource",
        "prometheus_remote_write": (
            "penstock.collector.sources.senders.prometheus_remote_write:PrometheusRemoteWriteSource"
        ),
        "socket": "penstock.collector.sources.senders.socket:SocketSource",
        "splunk_hec": "penstock.collector.sources.senders.splunk_hec:SplunkHecSource",
        "statsd": "penstock.collector.sources.statsd.source:StatsdSource",
        "stdin": "penstock.collector.sources.stdin:StdinSource",
        "syslog": "penstock.collector.sources.syslog.source:SyslogSource",
        "unix": "penstock.collector.sources.unix.source:UnixSource",
        "zipkin": "penstock.collector.sources.senders.zipkin:ZipkinSource",
    },
    base=SourceSettings,
    needed=("start", "run", "stop"),
)

TRANSFORMS: Final = Registry(
    "transform",
    "penstock.collector.transforms",
    {
        "aggregate": "penstock.collector.transforms.metrics.aggregate:Aggregate",
        "dedupe": "penstock.collector.transforms.dedupe:Dedupe",
        "edit": "penstock.collector.transforms.edit:Edit",
        "enrich": "penstock.collector.transforms.enrich:Enrich",
        "explode": "penstock.collector.transforms.grouping.explode:Explode",
        "filter": "penstock.collector.transforms.filter:Filter",
        "geoip": "penstock.collector.transforms.texts.geoip:GeoIp",
        "grok": "penstock.collector.transforms.texts.grok:Grok",
        "logs_to_metrics": "penstock.collector.transforms.logs_to_metrics:LogsToMetrics",
        "parse": "penstock.collector.transforms.parse:Parse",
        "redact": "penstock.collector.transforms.redact:Redact",
        "reduce": "penstock.collector.transforms.grouping.reduce:Reduce",
        "route": "penstock.collector.transforms.route:Route",
        "sample": "penstock.collector.transforms.sample:Sample",
        "tail_sample": "penstock.collector.transforms.grouping.tail_sample:TailSample",
        "temporality": "penstock.collector.transforms.metrics.temporality:Temporality",
        "throttle": "penstock.collector.transforms.throttle:Throttle",
        "timestamp": "penstock.collector.transforms.timestamp:Timestamp",
        "url": "penstock.collector.transforms.texts.url:Url",
        "user_agent": "penstock.collector.transforms.texts.user_agent:UserAgent",
        "xml": "penstock.collector.transforms.texts.xml:Xml",
    },
    base=TransformSettings,
    needed=("apply", "notes"),
)


class _SchemaOf:
    """Shows the settings of every type in the JSON Schema of the configuration."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        models = tuple(kind.settings for kind in self._registry.kinds())
        every: Any = Annotated[Union[models], Field(discriminator="type")]  # noqa: UP007 - of a tuple
        return handler(TypeAdapter(every).core_schema)


AnySource = Annotated[
    SerializeAsAny[SourceSettings], BeforeValidator(SOURCES.parse), _SchemaOf(SOURCES)
]
"""The settings of some source in a configuration; `type` decides which."""

AnyTransform = Annotated[
    SerializeAsAny[TransformSettings], BeforeValidator(TRANSFORMS.parse), _SchemaOf(TRANSFORMS)
]
"""The settings of some transform in a configuration; `type` decides which."""
