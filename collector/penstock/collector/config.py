"""The collector's configuration file."""

import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from penstock.collector.limits import LINE_BYTES_MAX
from penstock.service import HostPort

_TOKEN = re.compile(r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")


class Section(BaseModel):
    """A part of the configuration: unknown keys are mistakes, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSection(Section):
    """What every source has: a name, unique in the file; its type by default."""

    name: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")


class UnixSource(SourceSection):
    """Batches from the Penstock spec library over a Unix stream socket; acknowledged."""

    type: Literal["unix"]
    path: Path
    mode: int = Field(default=0o660, ge=0, le=0o777)


class StdinSource(SourceSection):
    """Lines from standard input; reading stops while the spool is full."""

    type: Literal["stdin"]
    service: str = Field(default="stdin", min_length=1)
    line_bytes_max: int = Field(default=LINE_BYTES_MAX, ge=64, le=LINE_BYTES_MAX)


class FileSource(SourceSection):
    """Lines of files, followed through rotation; the files are their own spool."""

    type: Literal["file"]
    include: list[str] = Field(min_length=1)
    exclude: list[str] = []
    service: str = Field(min_length=1)
    start: Literal["beginning", "end"] = "beginning"
    line_bytes_max: int = Field(default=LINE_BYTES_MAX, ge=64, le=LINE_BYTES_MAX)
    poll_ms: int = Field(default=250, ge=10, le=60_000)
    rotate_wait_s: float = Field(default=30.0, ge=0)


class ForwardSource(SourceSection):
    """Fluent forward messages over TCP or a Unix stream socket; chunks are acknowledged."""

    type: Literal["forward"]
    listen: HostPort | None = None
    path: Path | None = None
    service: str = Field(default="from_tag", min_length=1)

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "ForwardSource":
        if (self.listen is None) == (self.path is None):
            msg = "set either `listen` (HOST:PORT) or `path` (a Unix socket)"
            raise ValueError(msg)
        return self


class HostMetricsSource(SourceSection):
    """This host's cpu, memory, disk, network, load and filesystem figures."""

    type: Literal["host_metrics"]
    interval_s: float = Field(default=5.0, ge=0.1, le=3600)
    service: str = Field(default="penstock.host", min_length=1)


Source = Annotated[
    UnixSource | StdinSource | FileSource | ForwardSource | HostMetricsSource,
    Field(discriminator="type"),
]
SOURCE_TYPES: tuple[type[SourceSection], ...] = (
    UnixSource,
    StdinSource,
    FileSource,
    ForwardSource,
    HostMetricsSource,
)


class NatsSection(Section):
    """The NATS server that logd listens on."""

    url: str = Field(default="nats://127.0.0.1:4222", pattern=r"^(nats|tls)://\S+$")
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    ack_timeout_s: float = Field(default=5.0, gt=0, le=300)


class SpoolSection(Section):
    """What is acknowledged and not yet in the log."""

    bytes_max: int = Field(default=1024**3, ge=1024**2)
    when_full: Literal["block", "drop_newest"] = "block"


class BatchSection(Section):
    """When a batch is complete."""

    bytes_max: int = Field(default=512 * 1024, ge=1024, le=8 * 1024 * 1024)
    records_max: int = Field(default=1000, ge=1, le=100_000)
    age_ms: int = Field(default=200, ge=1, le=60_000)


class QuarantineSection(Section):
    """Records that can never be delivered, kept with the reason."""

    bytes_max: int = Field(default=256 * 1024**2, ge=1024**2)


class CollectorConfig(Section):
    """The whole file."""

    name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)
    data_dir: Path
    nats: NatsSection = NatsSection()
    admin: HostPort = "127.0.0.1:9295"
    subject_prefix: str = "telemetry"
    resource: dict[str, str] = {}
    sources: list[Source] = Field(min_length=1)
    spool: SpoolSection = SpoolSection()
    batch: BatchSection = BatchSection()
    quarantine: QuarantineSection = QuarantineSection()
    checkpoint_interval_s: float = Field(default=1.0, gt=0, le=60)
    connect_timeout_s: float = Field(default=10.0, gt=0)
    drain_timeout_s: float = Field(default=10.0, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("subject_prefix")
    @classmethod
    def _is_literal_subject(cls, value: str) -> str:
        if not _TOKEN.match(value):
            msg = "must be a NATS subject without wildcards, as in telemetry"
            raise ValueError(msg)
        return value

    @model_validator(mode="before")
    @classmethod
    def _name_sources(cls, data: Any) -> Any:
        """Give each source without a name its type's."""
        if isinstance(data, dict) and isinstance(data.get("sources"), list):
            named = [
                {"name": source.get("type"), **source} if isinstance(source, dict) else source
                for source in data["sources"]
            ]
            return {**data, "sources": named}
        return data

    @model_validator(mode="after")
    def _source_names_are_unique(self) -> "CollectorConfig":
        repeated = _repeated(source.name or source.type for source in self.sources)
        if repeated:
            msg = f"two sources are named {repeated!r}: give each its own `name`"
            raise ValueError(msg)
        if sum(source.type == "stdin" for source in self.sources) > 1:
            msg = "there is one standard input: configure one stdin source"
            raise ValueError(msg)
        return self


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
