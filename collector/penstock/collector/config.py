"""The collector's configuration: its sections, and how its files are read, merged and checked.

Several files make one configuration. Mappings are merged key by key; `sources` and `tests` are
joined; anything else may be set by one file only, since which of two wins would depend on their
order.

Variables are put in as in every part's file (`penstock.service.config`). Where the key
`environment` lists names, others are refused.

Processes that are started later inherit the configuration that runs: the files may say something
else by then. Their text travels in an anonymous file of memory: it may hold secrets, which no
argument, variable or file shall show.
"""

import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from penstock.collector.limits import (
    DESCRIPTORS_RESERVE,
    FILES_OPEN_MAX,
    RECEIVE_BYTES_MAX,
    RECEIVE_BYTES_MIN,
    RECEIVE_SOURCE_BYTES_MAX,
)
from penstock.collector.registry import AnySource, AnyTransform
from penstock.collector.sources.settings import Name, Section, clash
from penstock.collector.spool.urgency import Kind
from penstock.collector.transforms.graph.settings import OutputSection, TestCase
from penstock.service import AdminAccess, ConfigError, FilePath, HostPort, TracingSection
from penstock.service.config import (
    check_document,
    mapping_of,
    override_from,
    read_text,
    with_variables,
)
from penstock.service.config_types import Form, Secret
from penstock.specs.errors import SpecError
from penstock.specs.redact.detectors import DetectorName, Detectors
from penstock.specs.redact.scrubber import check_actions
from penstock.specs.redact.sensitivity import Action, HashKey

WhenFull = Literal["block", "drop_newest", "drop_oldest"]
_TOKEN = re.compile(r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")


class NatsSection(Section):
    """The NATS server that logd listens on."""

    url: Annotated[
        str, Form(r"^(nats|tls)://\S+$", "a URL as nats://HOST:PORT or tls://HOST:PORT")
    ] = "nats://127.0.0.1:4222"
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    ca_file: FilePath | None = None
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    ack_timeout_s: float = Field(default=5.0, gt=0, le=300)

    def secrets(self) -> Iterator[tuple[str, Secret]]:
        """Keys and secrets without which nobody can log in."""
        given = {"password": self.password, "token": self.token}
        yield from ((key, secret) for key, secret in given.items() if secret is not None)

    @field_validator("url")
    @classmethod
    def _names_a_server(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            known = parts.hostname is not None and parts.port != 0
        except ValueError:
            known = False
        if not known:
            msg = "must name a server, as in nats://HOST:PORT"
            raise ValueError(msg)
        return value

    @property
    def encrypted(self) -> bool:
        """True if the client only connects with TLS."""
        files = (self.ca_file, self.cert_file)
        return self.url.startswith("tls://") or any(file is not None for file in files)

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> "NatsSection":
        if self.key_file is not None and self.cert_file is None:
            msg = "`key_file` is of no use without `cert_file`"
            raise ValueError(msg)
        return self


class SpoolSection(Section):
    """The spool of acknowledged records that are not in the log yet.

    Audit and event records have their own spool, of `max_urgent_bytes`.
    """

    max_bytes: int = Field(default=1024**3, ge=1024**2)
    max_urgent_bytes: int = Field(default=256 * 1024**2, ge=1024**2)
    when_full: WhenFull | dict[Kind, WhenFull] = "block"

    def policy(self, kind: Kind) -> WhenFull:
        """Return the policy for a kind of records; audit is dropped only where it is named."""
        if isinstance(self.when_full, dict):
            return self.when_full.get(kind, "block")
        return "block" if kind == "audit" else self.when_full


class ReceiveSection(Section):
    """Bounds of what network sources hold before it is durable."""

    max_bytes: int = Field(default=RECEIVE_BYTES_MAX, ge=RECEIVE_BYTES_MIN)
    max_source_bytes: int = Field(default=RECEIVE_SOURCE_BYTES_MAX, ge=RECEIVE_BYTES_MIN)


class DescriptorsSection(Section):
    """The process's file descriptors and how sources share them (`collector.descriptors`)."""

    max_files: int = Field(
        default=FILES_OPEN_MAX, ge=1, description="files of all sources that are open at once"
    )
    reserve: int = Field(
        default=DESCRIPTORS_RESERVE,
        ge=48,
        description="kept for the checkpoint, the spools, the admin endpoint and NATS",
    )


class BatchSection(Section):
    """Bounds at which a batch is complete."""

    max_bytes: int = Field(default=512 * 1024, ge=1024, le=8 * 1024 * 1024)
    max_records: int = Field(default=1000, ge=1, le=100_000)
    max_age_ms: int = Field(default=200, ge=1, le=60_000)


class QuarantineSection(Section):
    """Records that can never be delivered, kept with the reason."""

    max_bytes: int = Field(default=256 * 1024**2, ge=1024**2)


class DropsSection(Section):
    """The drop journal: records that transforms dropped (`penstock.collector.drops.journal`).

    Attributes:
        max_rate: Drops recorded per second; others are counted.
        max_text_bytes: Bytes of text kept of a record; 0: none.
    """

    enabled: bool = True
    max_bytes: int = Field(default=64 * 1024**2, ge=1024**2)
    max_age_s: float = Field(default=86_400.0, ge=60, le=366 * 86_400)
    max_rate: float = Field(default=200.0, ge=1, le=1e6)
    max_text_bytes: int = Field(default=200, ge=0, le=4096)


class ExceptSection(Section):
    """Texts that the detectors of sensitive values leave alone.

    Fields are paths with dots (`body`, `attributes.order_id`); patterns are looked for in what was
    found, in RE2's syntax.
    """

    fields: list[str] = Field(default=[], max_length=1024)
    patterns: list[str] = Field(default=[], max_length=256)


class SensitiveSection(Section):
    """The treatment of sensitive values of every source; see `penstock.specs.redact.scrubber`.

    `search` is whether texts are searched at all, `detectors` switches single ones off, and with
    `mode: count` what they find is counted and stays. What specs declare is treated in either mode.
    """

    enabled: bool = True
    search: bool = True
    mode: Literal["redact", "count"] = "redact"
    detectors: dict[DetectorName, bool] = Field(default={})
    except_: ExceptSection = Field(default=ExceptSection(), alias="except")
    hash_key: Secret | None = None
    without_key: Literal["redact", "keep"] = "redact"
    actions: dict[str, Action] = Field(default={})

    @field_validator("actions")
    @classmethod
    def _are_for_fields(cls, value: dict[str, Action]) -> dict[str, Action]:
        try:
            check_actions(value)
        except SpecError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("except_")
    @classmethod
    def _has_patterns(cls, value: ExceptSection) -> ExceptSection:
        try:
            Detectors(except_patterns=tuple(value.patterns))
        except SpecError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("hash_key")
    @classmethod
    def _is_a_hash_key(cls, value: Secret | None) -> Secret | None:
        if value is not None and value.value is not None:
            try:
                HashKey.parse(value.read())
            except SpecError as error:
                raise ValueError(str(error)) from None
        return value

    def read_hash_key(self) -> HashKey | None:
        """The key for pseudonyms as it is now.

        Raises:
            ConfigError: Its file cannot be read, or what it holds is no hash key.
        """
        if self.hash_key is None:
            return None
        try:
            return HashKey.parse(self.hash_key.read())
        except (OSError, SpecError) as error:
            place = f"{self.hash_key.file}: " if self.hash_key.file is not None else ""
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise ConfigError(
                f"sensitive.hash_key: {place}{why}",
                fix="give id:secret with a secret of 16 characters or more, in a readable file",
            ) from None


class CollectorConfig(Section):
    """The whole file."""

    name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)
    data_dir: FilePath
    nats: NatsSection = NatsSection()
    admin: HostPort = "127.0.0.1:9295"
    admin_hosts: tuple[str, ...] = Field(
        default=(), description="names with a dot by which admin may be called without TLS"
    )
    admin_access: AdminAccess | None = None
    admin_socket: FilePath | None = None
    tracing: TracingSection | None = None
    subject_prefix: str = "telemetry"
    resource: dict[str, str] = Field(default_factory=dict)
    environment: list[str] = Field(default=[])
    sources: list[AnySource] = Field(min_length=1)
    transforms: dict[Name, AnyTransform] = Field(default={}, max_length=256)
    output: OutputSection = OutputSection()
    tests: list[TestCase] = Field(default=[])
    receive: ReceiveSection = ReceiveSection()
    descriptors: DescriptorsSection = DescriptorsSection()
    spool: SpoolSection = SpoolSection()
    batch: BatchSection = BatchSection()
    quarantine: QuarantineSection = QuarantineSection()
    drops: DropsSection = DropsSection()
    sensitive: SensitiveSection = SensitiveSection()
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

    @model_validator(mode="after")
    def _sources_listen_apart(self) -> "CollectorConfig":
        if (problem := clash(self.sources)) is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _requests_fit_their_share(self) -> "CollectorConfig":
        share = min(self.receive.max_source_bytes, self.receive.max_bytes)
        for source in self.sources:
            if source.max_request_bytes > share:
                msg = (
                    f"source {source.name}: max_message_bytes is above {share}, what a source may "
                    "hold by `receive`: raise that, or lower it"
                )
                raise ValueError(msg)
        return self


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


ENV_PREFIX: Final = "PENSTOCK_COLLECTOR"
_JOINED: Final = frozenset({"sources", "tests", "environment"})


Texts = Mapping[Path, str]
"""The text of configuration files, by their names."""


def read_texts(paths: Sequence[Path]) -> Texts:
    """Read the current text of the files.

    Raises:
        ConfigError: A file cannot be read.
    """
    return {path: read_text(path) for path in paths}


def load_collector_config(
    paths: Sequence[Path],
    environ: Mapping[str, str] | None = None,
    *,
    texts: Texts | None = None,
) -> CollectorConfig:
    """One configuration of one or more files.

    Args:
        paths: In any order.
        environ: The environment; the process's own by default.
        texts: Text of the files, to be used in place of their current text.

    Raises:
        ConfigError: With file, key path, reason and fix for every error found.
    """
    environment = os.environ if environ is None else environ
    texts = read_texts(paths) if texts is None else texts
    document: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    for path in paths:
        _merge(document, mapping_of(texts[path], path), path, origins, "")
    name = Path(", ".join(map(str, paths)))
    allowed = document.get("environment")
    listed = frozenset(map(str, allowed)) if isinstance(allowed, list) and allowed else None
    document = with_variables(document, environment, name, allowed=listed)
    override_from(environment, document, ENV_PREFIX)
    return check_document(CollectorConfig, document, name, environ=environment, allowed=listed)


def _merge(
    into: dict[str, Any], more: Mapping[str, Any], path: Path, origins: dict[str, Path], prefix: str
) -> None:
    for key, value in more.items():
        where = f"{prefix}{key}"
        if key not in into:
            into[key] = dict(value) if isinstance(value, dict) else value
            _remember(value, path, origins, where)
        elif isinstance(into[key], dict) and isinstance(value, dict):
            _merge(into[key], value, path, origins, f"{where}.")
        elif prefix == "" and key in _JOINED and isinstance(into[key], list):
            into[key] = [*into[key], *(value if isinstance(value, list) else [value])]
        else:
            raise ConfigError(
                f"{path}: {where}: {origins.get(where, path)} sets it, too",
                fix=f"leave {where} in one of the files",
            )


def _remember(value: Any, path: Path, origins: dict[str, Path], where: str) -> None:
    origins[where] = path
    if isinstance(value, dict):
        for key, inner in value.items():
            _remember(inner, path, origins, f"{where}.{key}")


def write_inherited(texts: Texts) -> int:
    """A descriptor for a process to inherit; the caller closes it."""
    descriptor = os.memfd_create("penstock-collector-config", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps({str(path): text for path, text in texts.items()}).encode())
    return descriptor


def read_inherited(descriptor: int) -> Texts:
    """Read what was inherited; the descriptor is closed.

    Raises:
        OSError: Nothing was.
        ValueError: Likewise.
    """
    with open(descriptor, "rb") as file:
        file.seek(0)
        texts = json.load(file)
    return {Path(path): text for path, text in texts.items()}
