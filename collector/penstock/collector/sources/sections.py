"""The sections of the configuration that describe sources, one model a type.

`penstock collector sources` prints them; the keys are described in collector/README.md.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from glob import escape
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from penstock.collector.decode.timestamps import known_zone, layouts_of
from penstock.collector.limits import (
    CONNECTIONS_MAX,
    DECOMPRESSED_BYTES_MAX,
    FILE_LINE_BYTES_MAX,
    KIB,
    LINE_BYTES_MAX,
    MIB,
)
from penstock.collector.regex import compile_pattern
from penstock.service import FilePath, HostPort, NoNul, Quantities, SocketPath, absolute
from penstock.service.config import OCTAL, split_host_port
from penstock.service.config_types import Secret, check_unexpanded

TOKEN: Final = re.compile(r"[!-~]+")
_REUSE: Final = "other processes of this user may listen there, too"


def _absolute_pattern(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    check_unexpanded(text)
    return absolute(text, escape)


Pattern = Annotated[NoNul, AfterValidator(_absolute_pattern)]
"""Of paths; absolute once it was read, as a `FilePath`."""


class Section(Quantities):
    """A part of the configuration: unknown keys are mistakes, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSection(Section):
    """What every source has: a name, unique in the file; its type by default."""

    name: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")


class ListeningSection(SourceSection):
    """What every source has that accepts connections."""

    max_connections: int = Field(
        default=CONNECTIONS_MAX, ge=1, le=65_536, description="open at once on one address"
    )


class TlsSection(Section):
    """The certificate that a listening source shows; read again when it changes."""

    cert_file: FilePath = Field(description="PEM: the certificate and what leads to its authority")
    key_file: FilePath = Field(description="PEM: its key, without a password")
    ca_file: FilePath | None = Field(
        default=None, description="PEM: who must have signed a sender's certificate; none is asked"
    )


class UnixSource(ListeningSection):
    """Batches from the Penstock spec library over a Unix stream socket; acknowledged."""

    type: Literal["unix"]
    path: SocketPath
    mode: int = Field(default=0o660, ge=0, le=0o777, json_schema_extra={"format": OCTAL})


class TimestampOptions(Section):
    """Where a time stands in a text, and how it is written."""

    pattern: str | None = Field(
        default=None, description="RE2; its group `time`, its first group or all of it is the time"
    )
    layouts: list[str] = Field(
        default=["auto"], min_length=1, max_length=32, description="named, or as for strptime"
    )
    zone: str = Field(default="UTC", description="of times that name none")

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            compile_pattern(value)
        return value

    @field_validator("layouts")
    @classmethod
    def _are_layouts(cls, value: list[str]) -> list[str]:
        layouts_of(value)
        return value

    @field_validator("zone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return known_zone(value)


class LineTimestamp(TimestampOptions):
    """The same for lines, of which some may be structured."""

    field: str | None = Field(
        default=None, min_length=1, description="the key of a JSON line that has its time"
    )
    on_error: Literal["pass", "filter", "quarantine"] = Field(
        default="pass", description="what becomes of a record whose time cannot be read"
    )


class LinesSection(SourceSection):
    """What sources of lines have in common."""

    timestamp: LineTimestamp | None = Field(
        default=None, description="the time that stands in a line; what cannot be read is counted"
    )
    detect: list[Literal["severity", "time"]] = Field(
        default=[], description="what is looked for in the usual places of a line of text"
    )

    @field_validator("detect", mode="before")
    @classmethod
    def _may_be_one(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    def line_options(self) -> dict[str, Any]:
        """What `penstock.collector.decode.line_rules` is told; empty: nothing is looked for."""
        found: dict[str, Any] = {}
        if self.timestamp is not None:
            found["timestamp"] = self.timestamp.model_dump()
        if self.detect:
            found["detect"] = sorted(self.detect)
        return found


class StdinSource(LinesSection):
    """Lines from standard input; reading stops while the spool is full."""

    type: Literal["stdin"]
    service: str = Field(default="stdin", min_length=1)
    max_line_bytes: int = Field(default=LINE_BYTES_MAX, ge=64, le=LINE_BYTES_MAX)


class MultilineSection(Section):
    """Which lines belong together; patterns in RE2's syntax, searched in a line's first KiB."""

    start: str | None = Field(default=None, description="a line with it begins an event")
    continuation: str | None = Field(default=None, description="a line with it goes on with one")

    @model_validator(mode="after")
    def _is_one_pattern(self) -> "MultilineSection":
        pattern = self.start if self.start is not None else self.continuation
        if pattern is None or (self.start is not None and self.continuation is not None):
            msg = "set either `start` or `continuation`"
            raise ValueError(msg)
        try:
            compile_pattern(pattern.encode())
        except ValueError as error:
            msg = f"{pattern!r} {error}"
            raise ValueError(msg) from None
        return self


_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubernetesSection(Section):
    """Whom the pods of the files' containers are asked of, for `k8s.*` resource attributes."""

    ask: Literal["api", "kubelet"] = Field(
        default="api", description="the API server for the pods of the node, or its kubelet"
    )
    server: str = Field(
        default="https://kubernetes.default.svc",
        pattern=r"^https?://[^/\s]+$",
        description="URL; of a kubelet as in https://127.0.0.1:10250",
    )
    node: str | None = Field(default=None, min_length=1, description="by default `name`")
    token_file: FilePath = Field(
        default=_SERVICE_ACCOUNT / "token", description="read again for each request"
    )
    ca_file: FilePath = Field(default=_SERVICE_ACCOUNT / "ca.crt", description="PEM")
    verify: bool = Field(
        default=True, description="false: any certificate is taken, as kubelets sign their own"
    )
    labels: list[str] = Field(
        default=["*"], description="names of the pod's labels that are wanted; patterns"
    )
    refresh_s: float = Field(default=30.0, ge=1, le=3600)
    timeout_s: float = Field(default=10.0, gt=0, le=300, description="of one request")
    wait_s: float = Field(
        default=5.0, ge=0, le=300, description="how long a new file waits for what its pod is"
    )


class FileSource(LinesSection):
    """Lines of files, followed through rotation; the files are their own spool."""

    type: Literal["file"]
    include: list[Pattern] = Field(min_length=1)
    exclude: list[Annotated[NoNul, AfterValidator(check_unexpanded)]] = Field(default=[])
    service: str = Field(min_length=1)
    start: Literal["beginning", "end"] = "beginning"
    format: Literal["plain", "docker", "cri"] = "plain"
    multiline: MultilineSection | None = None
    join_timeout_s: float = Field(
        default=5.0, ge=0, le=3600, description="how long an event waits for more of its lines"
    )
    flush_partial_s: float | None = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="how long a last line waits for its newline; null: until it comes",
    )
    max_line_bytes: int = Field(
        default=LINE_BYTES_MAX,
        ge=64,
        le=FILE_LINE_BYTES_MAX,
        description="longer lines are cut and marked; one above 32 KiB becomes several records",
    )
    encoding: Literal[
        "utf-8", "utf-16", "utf-16le", "utf-16be", "latin-1", "windows-1252", "iso-8859-15"
    ] = Field(default="utf-8", description="of `plain` files; `utf-16` goes by the byte order mark")
    poll_ms: int = Field(default=250, ge=10, le=60_000)
    rotate_wait_s: float = Field(default=30.0, ge=0)
    kubernetes: KubernetesSection | None = None
    max_decompressed_bytes: int = Field(
        default=DECOMPRESSED_BYTES_MAX,
        ge=1,
        description="what the rest of a file is not read in a compressed one beyond",
    )

    @model_validator(mode="after")
    def _has_containers(self) -> "FileSource":
        if self.service == "from_container" and self.kubernetes is None:
            msg = "`service: from_container` needs the section `kubernetes` ({} is enough in a pod)"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _encoding_is_of_plain_lines(self) -> "FileSource":
        if self.encoding != "utf-8" and self.format != "plain":
            msg = f"`encoding` is for `format: plain`; runtimes write {self.format} in UTF-8"
            raise ValueError(msg)
        return self


class ForwardSource(ListeningSection):
    """Fluent forward messages over TCP, TLS or a Unix stream socket; chunks are acknowledged."""

    type: Literal["forward"]
    listen: HostPort | None = None
    path: SocketPath | None = None
    reuse_port: bool = Field(default=False, description=_REUSE)
    tls: TlsSection | None = None
    shared_key: Secret | None = Field(default=None, description="senders must prove it")
    users: dict[str, Secret] = Field(default={}, description="names and passwords besides it")
    service: str = Field(default="from_tag", min_length=1)

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "ForwardSource":
        if (self.listen is None) == (self.path is None):
            msg = "set either `listen` (HOST:PORT) or `path` (a Unix socket)"
            raise ValueError(msg)
        if self.tls is not None and self.listen is None:
            msg = "`tls` is for `listen`; a Unix socket needs none"
            raise ValueError(msg)
        if self.users and self.shared_key is None:
            msg = "`users` needs a `shared_key`: the protocol has no users without one"
            raise ValueError(msg)
        return self


class CorsSection(Section):
    """Which web pages may send by HTTP, as browsers ask before they do (CORS)."""

    allowed_origins: list[str] = Field(
        min_length=1, description="as https://shop.example.com; `*` in one stands for any text"
    )
    allowed_headers: list[str] = Field(
        default_factory=list, description="beside those that OTLP needs"
    )
    max_age_s: int = Field(default=7200, ge=0, description="how long a browser need not ask again")

    def allows(self, origin: str) -> bool:
        """Whether pages of an origin may send."""
        return any(
            re.fullmatch(".*".join(map(re.escape, each.split("*"))), origin, re.IGNORECASE)
            for each in self.allowed_origins
        )

    def preflight(self, asked: str) -> dict[str, str]:
        """What a browser is told of the headers that it asks for."""
        allowed = ["content-type", "content-encoding", *map(str.lower, self.allowed_headers)]
        wanted = [name.strip().lower() for name in asked.split(",") if name.strip()]
        return {
            "access-control-allow-methods": "POST",
            "access-control-allow-headers": ", ".join(
                [name for name in wanted if name in allowed] or allowed
            ),
            "access-control-max-age": str(self.max_age_s),
        }


class OtlpSource(ListeningSection):
    """OpenTelemetry protocol over gRPC and HTTP: logs, traces, metrics; acknowledged."""

    type: Literal["otlp"]
    grpc: HostPort | None = "127.0.0.1:4317"
    http: HostPort | None = "127.0.0.1:4318"
    reuse_port: bool = Field(default=False, description=_REUSE)
    tls: TlsSection | None = None
    cors: CorsSection | None = Field(default=None, description="for `http`")
    max_message_bytes: int = Field(default=4 * MIB, ge=KIB, le=64 * MIB)

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "OtlpSource":
        if self.grpc is None and self.http is None:
            msg = "set `grpc`, `http` or both (HOST:PORT)"
            raise ValueError(msg)
        return self


class SyslogSource(ListeningSection):
    """Syslog messages, RFC 5424 and RFC 3164, over UDP, TCP, TLS or a Unix datagram socket."""

    type: Literal["syslog"]
    udp: HostPort | None = "127.0.0.1:5140"
    tcp: HostPort | None = "127.0.0.1:5140"
    path: SocketPath | None = Field(
        default=None, description="of a Unix datagram socket, as programs write to /dev/log"
    )
    mode: int = Field(default=0o666, ge=0, le=0o777, json_schema_extra={"format": OCTAL})
    reuse_port: bool = Field(default=False, description=_REUSE)
    tls: TlsSection | None = Field(default=None, description="for `tcp`")
    service: str = Field(default="from_app", min_length=1)
    timezone: str = Field(default="UTC", description="of times without a zone (RFC 3164)")
    max_message_bytes: int = Field(default=LINE_BYTES_MAX, ge=480, le=64 * KIB)

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return known_zone(value)

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "SyslogSource":
        if self.udp is None and self.tcp is None and self.path is None:
            msg = "set `udp`, `tcp` (HOST:PORT) or `path` (a Unix socket)"
            raise ValueError(msg)
        if self.tls is not None and self.tcp is None:
            msg = "`tls` is for `tcp`, which is not set"
            raise ValueError(msg)
        return self


class StatsdSource(ListeningSection):
    """StatsD and DogStatsD samples over UDP or TCP, aggregated."""

    type: Literal["statsd"]
    udp: HostPort | None = "127.0.0.1:8125"
    tcp: HostPort | None = None
    tls: TlsSection | None = Field(default=None, description="for `tcp`")
    service: str = Field(default="statsd", min_length=1)
    flush_interval_s: float = Field(default=10.0, ge=0.1, le=3600)
    max_series: int = Field(default=10_000, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "StatsdSource":
        if self.udp is None and self.tcp is None:
            msg = "set `udp`, `tcp` or both (HOST:PORT)"
            raise ValueError(msg)
        if self.tls is not None and self.tcp is None:
            msg = "`tls` is for `tcp`, which is not set"
            raise ValueError(msg)
        return self


class ExecSource(LinesSection):
    """Lines that a program writes to its outputs."""

    type: Literal["exec"]
    command: list[NoNul] = Field(min_length=1, description="program and arguments; no shell")
    interval_s: float | None = Field(
        default=None, ge=0.1, le=86_400, description="none: it goes on, and is started when it ends"
    )
    timeout_s: float = Field(default=60.0, gt=0, le=86_400, description="of one run by interval")
    service: str = Field(min_length=1)
    max_line_bytes: int = Field(default=LINE_BYTES_MAX, ge=64, le=LINE_BYTES_MAX)


class JournaldSource(SourceSection):
    """Entries of the systemd journal, by `journalctl`."""

    type: Literal["journald"]
    units: list[NoNul] = Field(default=[], description="only of these; none: of all")
    start: Literal["beginning", "end"] = "beginning"
    service: str = Field(default="from_unit", min_length=1)


class PrometheusSource(SourceSection):
    """Metrics scraped from Prometheus exporters."""

    type: Literal["prometheus"]
    targets: list[Annotated[str, Field(pattern=r"^https?://[^/\s]+(/\S*)?$")]] = Field(
        min_length=1, description="URLs"
    )
    interval_s: float = Field(default=15.0, ge=0.1, le=86_400)
    timeout_s: float = Field(default=10.0, gt=0, le=3600)
    max_samples: int = Field(default=50_000, ge=1, le=500_000, description="of one scrape")
    service: str = Field(default="prometheus", min_length=1)
    bearer_token: Secret | None = None
    ca_file: FilePath | None = Field(default=None, description="PEM: who signs https targets")

    @field_validator("targets")
    @classmethod
    def _can_be_asked(cls, value: list[str]) -> list[str]:
        """One that cannot even be asked for would end the scrapes of all."""
        for target in value:
            if not _is_url(target):
                msg = "must be URLs of a host, perhaps a port, in ASCII: http://127.0.0.1:9100/metrics"
                raise ValueError(msg)
        return value

    @field_validator("bearer_token")
    @classmethod
    def _can_be_sent(cls, value: Secret | None) -> Secret | None:
        text = None if value is None or value.value is None else value.value.get_secret_value()
        if text is not None and not TOKEN.fullmatch(text):
            msg = "must be printable ASCII without spaces, as a header has it; look for a newline"
            raise ValueError(msg)
        return value


class HostMetricsSource(SourceSection):
    """This host's cpu, memory, disk, network, load and filesystem figures."""

    type: Literal["host_metrics"]
    interval_s: float = Field(default=5.0, ge=0.1, le=3600)
    service: str = Field(default="penstock.host", min_length=1)


Source = Annotated[
    UnixSource
    | StdinSource
    | FileSource
    | ForwardSource
    | OtlpSource
    | SyslogSource
    | StatsdSource
    | ExecSource
    | JournaldSource
    | PrometheusSource
    | HostMetricsSource,
    Field(discriminator="type"),
]
SOURCE_TYPES: tuple[type[SourceSection], ...] = get_args(get_args(Source)[0])


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna")
        return bool(host) and parts.port != 0 and text.isascii() and text.isprintable()
    except ValueError:  # of a port, of brackets, of a name
        return False


_PROTOCOLS = {"listen": "TCP", "grpc": "TCP", "http": "TCP", "tcp": "TCP", "udp": "UDP"}
"""The protocol of each key that holds an address to listen on."""


class Listener(NamedTuple):
    """One address of one source.

    Attributes:
        key: Its place in the configuration.
        place: The address, or the path of a Unix socket, as it is written.
        protocol: `TCP`, `UDP` or `Unix`.
        shares: Whether the kernel lets others listen there, too.
    """

    key: str
    place: str
    protocol: str
    shares: bool


def clash(sources: Sequence[SourceSection]) -> str | None:
    """What is wrong where two sources listen in one place; None: no two do."""
    for one, other in combinations(_listeners(sources), 2):
        if _is_one_place(one, other) and not (one.shares and other.shares):
            return f"{other.key}: {one.key} has {one.place}, too: {_FIXES[one.protocol]}"
    return None


_FIXES = {
    "TCP": "give one of them another port, or null for none",
    "UDP": "give one of them another port, or null for none",
    "Unix": "give one of them another path",
}


def _listeners(sources: Sequence[SourceSection]) -> Iterator[Listener]:
    for index, source in enumerate(sources):
        for key, protocol in _PROTOCOLS.items():
            if (address := getattr(source, key, None)) is not None:
                shares = bool(getattr(source, "reuse_port", False))
                yield Listener(f"sources.{index}.{key}", address, protocol, shares)
        if (path := getattr(source, "path", None)) is not None:
            yield Listener(f"sources.{index}.path", str(path), "Unix", shares=False)


def _is_one_place(one: Listener, other: Listener) -> bool:
    if one.protocol != other.protocol:
        return False
    if one.protocol == "Unix":
        return one.place == other.place
    host, port = split_host_port(one.place)
    other_host, other_port = split_host_port(other.place)
    return port == other_port != 0 and _meet(host, other_host)


def _meet(host: str, other: str) -> bool:
    """Whether two hosts are one address, or one of them stands for all of its family."""
    try:
        one, two = map(ipaddress.ip_address, map(_as_number, (host, other)))
    except ValueError:  # a name, of which only the resolver knows more
        return host == other
    return one == two or (one.version == two.version and (one.is_unspecified or two.is_unspecified))


def _as_number(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host
