"""A job as data: which streams, which routes, which sinks."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from penstock.logd.client import Access
from penstock.router.checkpoint.settings import AnyStore
from penstock.router.errors import BadOptionError
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.settings import Name, Seconds, Settings
from penstock.router.read.offset_spec import Subscription, assigned, check_subject
from penstock.router.read.offsets import offsets_from_json
from penstock.router.sinks.registry import AnySinkConfig
from penstock.router.transforms.settings import Steps, Transform
from penstock.service import AdminAccess, HostPort, HostPorts, TracingSection
from penstock.service.config_types import Form

_FILES: Final = frozenset({"lock", "format"})
"""Files in `checkpoint_dir` whose name a sink could have."""


def check_directories(
    checkpoint_dir: Path, work_dir: Path, dead_letter_dir: Path, sinks: Iterable[str]
) -> None:
    """Make sure that each sink's directory is its own.

    Args:
        checkpoint_dir: It has a directory of each sink.
        work_dir: Below it, Spark's directory is emptied at each start.
        dead_letter_dir: It has a directory of each sink, too.
        sinks: Their names.

    Raises:
        ValueError: It is not; the text begins with the key.
    """
    names = list(sinks)
    homes = {name: _real(checkpoint_dir / name) for name in names}
    work, dead_letters = _real(work_dir), _real(dead_letter_dir)
    for name, home in homes.items():
        if name in _FILES:
            raise ValueError(f"sinks.{name}: a file in checkpoint_dir has this name; use another")
        if work.is_relative_to(home) or home.is_relative_to(work / "spark"):
            raise ValueError(
                f"sinks.{name}: it keeps its progress in {home}, where work_dir is, which is"
                " emptied at each start; rename the sink or move work_dir"
            )
        if dead_letters.is_relative_to(home) or home in [dead_letters / other for other in names]:
            raise ValueError(
                f"sinks.{name}: it keeps its progress in {home}, where dead_letter_dir is;"
                " rename the sink or move dead_letter_dir"
            )


def _real(path: Path) -> Path:
    """Without links, as far as it can be resolved; its user reports what is wrong with it."""
    return Path(os.path.realpath(path))


SECRET_SETTING: Final = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""Pattern of settings that Spark redacts (`spark.redaction.regex`)."""


def _local(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        raise ValueError(
            "must be a directory of this machine, perhaps a network volume: the job's lock, sinks'"
            " own state, journals and dead letters need a file system with locks and renames;"
            " `checkpoint_store` keeps all of these in S3 or HDFS as well"
        )
    return value


def _subject(value: str) -> str:
    try:
        return check_subject(value)
    except BadOptionError as error:
        raise ValueError(str(error)) from None


def _moment(value: Any) -> Any:
    """A time as people write it; without a zone UTC, as commands take it."""
    if isinstance(value, str) and value.isascii() and "-" in value:
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, dict):  # pydantic refuses it as no time: a file or a variable may be meant
        return value
    if not isinstance(value, datetime):
        raise ValueError("a time looks like 2026-01-31T03:00:00Z")  # noqa: TRY004 - pydantic's
    return value if value.tzinfo else value.replace(tzinfo=UTC)


LocalDirectory = Annotated[Path, BeforeValidator(_local)]

Moment = Annotated[datetime, BeforeValidator(_moment)]


def _beginning(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Replace pydantic's errors, one for each of several forms, by one that lists the forms."""
    try:
        return handler(value)
    except ValidationError:
        raise PydanticCustomError(
            "literal_error",  # as of any value in whose place a file or a variable may be named
            "must be earliest, latest, a time such as 2026-01-31T03:00:00Z, or offsets by stream"
            f' and partition such as {{logs: {{"0": 123}}}}, not {str(value)[:100]!r}',
        ) from None


def _assigned(value: dict[str, list[int]]) -> dict[str, list[int]]:
    try:
        assigned(value)
    except BadOptionError as error:
        raise ValueError(
            str(error).removeprefix("option assign ").removeprefix("option assign: ")
        ) from None
    return value


Beginning = Annotated[
    Literal["earliest", "latest"] | Moment | dict[str, dict[str, int]], WrapValidator(_beginning)
]

Identifier = Annotated[
    str, Form(r"^[a-zA-Z_]\w{0,62}$", "1 to 63 letters, digits and _, the first of a-z A-Z _")
]
"""Name of a table or function in SQL."""

Function = Annotated[
    str, Form(r"^[a-zA-Z_][\w.]*:[a-zA-Z_]\w*$", "MODULE:FUNCTION, as in my_package.texts:shorten")
]
"""A function in a module, as MODULE:FUNCTION."""


class Trigger(Settings):
    """Interval and size of the batches of a sink's query."""

    interval_s: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 2.0
    max_records: Annotated[int, Field(ge=1, le=1_000_000)] = 200_000
    max_bytes: Annotated[int, Field(ge=1_048_576, le=1_073_741_824)] = 67_108_864
    min_offsets_per_trigger: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    max_trigger_delay_s: Annotated[int, Field(ge=1, le=604_800)] = 900

    @model_validator(mode="after")
    def _bounds_fit_together(self) -> Self:
        if self.min_offsets_per_trigger > self.max_records:
            raise ValueError(
                f"min_offsets_per_trigger ({self.min_offsets_per_trigger}) is above max_records"
            )
        return self

    def options(self) -> dict[str, str]:
        """Return the trigger as options of Spark's data source, but for the bytes of a batch.

        How many those may be, the heap decides, too: `HeapBudget.batch_bytes`.
        """
        found = {
            "maxOffsetsPerTrigger": str(self.max_records),
            "batchInterval": f"{round(self.interval_s * 1000)}ms",
        }
        if self.min_offsets_per_trigger == 1:
            return found
        waiting = {"minOffsetsPerTrigger": str(self.min_offsets_per_trigger)}
        return found | waiting | {"maxTriggerDelay": f"{self.max_trigger_delay_s}s"}


class Source(Settings):
    """Settings of the connection to logd, and the router's credentials there."""

    fail_on_data_loss: bool = True
    retry_timeout_s: Seconds = 120.0
    cursors: bool = True
    min_partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    assign: Annotated[dict[str, list[int]], AfterValidator(_assigned)] | None = None
    subject: Annotated[str, AfterValidator(_subject)] | None = None
    read_from: Literal["leader", "replica"] = "leader"
    rack: (
        Annotated[str, Form(r"^\S(.{0,62}\S)?$", "1 to 64 characters, the first and last no space")]
        | None
    ) = None
    token_file: Path | None = None
    tls: bool = False
    tls_ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        self.access()
        if self.rack is not None and self.read_from == "leader":
            raise ValueError("rack: which replica is read from needs read_from: replica")
        return self

    def access(self) -> Access:
        return Access(
            tls=self.tls,
            ca_file=self.tls_ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            token_file=self.token_file,
        )

    def options(self) -> dict[str, str]:
        """Return the settings as options of Spark's data source."""
        found = {
            "tokenFile": self.token_file,
            "tlsCaFile": self.tls_ca_file,
            "certFile": self.cert_file,
            "keyFile": self.key_file,
        }
        files = {name: str(path.absolute()) for name, path in found.items() if path is not None}
        chosen = {"subject": self.subject, "rack": self.rack}
        return {
            **files,
            **{name: text for name, text in chosen.items() if text is not None},
            "readFrom": self.read_from,
            "tls": str(self.tls).lower(),
            "minPartitions": str(self.min_partitions),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "retryTimeoutSeconds": str(self.retry_timeout_s),
        }


class Route(Settings):
    """Records for which `where` holds go to `sinks`; all records without a `where`."""

    name: Name
    where: Annotated[str, Field(min_length=1)] | None = None
    transforms: Steps = Field(default_factory=list)
    sinks: Annotated[list[Name], Field(min_length=1)]


class Unmatched(Settings):
    """Transforms and sinks of records that no route takes."""

    transforms: Steps = Field(default_factory=list)
    sinks: list[Name] = Field(default_factory=list)


class Table(Settings):
    """A table that steps `sql` may join; it is read when the job starts.

    Attributes:
        path: A file, or a directory of files.
        format: Format of the path, as Spark names it.
        table: Name in a catalog of Spark's, in place of a path.
        columns: Names and types of the columns, as in `service STRING, owner STRING`; none: as
            the format has them.
        options: Spark's options of the format.
    """

    path: str | None = None
    format: Annotated[str, Form(r"^[\w.]+$", "a name of letters, digits, _ and .")] = "parquet"
    table: Annotated[str, Field(min_length=1)] | None = None
    columns: Annotated[str, Field(min_length=1)] | None = None
    options: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if (self.path is None) == (self.table is None):
            raise ValueError("name a path, or a table of a catalog")
        return self


class DeadLetterStream(Settings):
    """A stream that gets each dead letter as well; some stream of logd must store `subject`."""

    nats: Annotated[
        str, Form(r"^(nats|tls)://\S+$", "a URL as nats://HOST:PORT or tls://HOST:PORT")
    ] = "nats://127.0.0.1:4222"
    subject: Annotated[
        str, Form(r"^[^\s.*>]+(\.[^\s.*>]+)*$", "tokens joined by dots, without spaces, * and >")
    ]


class Spark(Settings):
    """The Spark session; `conf` wins over everything that the router sets itself.

    Attributes:
        master: Spark's master; `local[*]` is this process, with a task for each core.
        driver_memory: Heap of the JVM.
        ui: Whether Spark's own page is served, which asks nobody who they are; none: where
            `admin_access` is not set.
        secret_file: Holds, in its only line, what a cluster's processes know each other by
            (`spark.authenticate.secret`); on `local` masters Spark makes one itself.
        package: Archive of `penstock router package`, which Spark brings to the executors; none:
            they have Penstock installed.
        conf: Spark's own settings.
    """

    master: str = "local[*]"
    driver_memory: Annotated[
        str, Form(r"^\d+[kmg]$", "a whole number with k, m or g, as in 896m")
    ] = "896m"
    ui: bool | None = None
    secret_file: Path | None = None
    package: Path | None = None
    conf: dict[str, str] = Field(default_factory=dict)

    @field_serializer("conf", when_used="json")
    def _hide_secrets(self, conf: dict[str, str]) -> dict[str, str]:
        return {k: "**********" if SECRET_SETTING.search(k) else v for k, v in conf.items()}

    @property
    def is_local(self) -> bool:
        """True if the driver is the only executor."""
        return self.master.startswith("local") and "-cluster" not in self.master

    @property
    def knows_its_own(self) -> bool:
        """True if Spark's processes authenticate each other by a secret."""
        if (chosen := self.conf.get("spark.authenticate")) is not None:
            return chosen.strip().lower() == "true"
        return self.is_local or self.secret_file is not None

    @property
    def is_on_this_machine(self) -> bool:
        """True if executors reach the driver over the loopback interface."""
        host = self.master.partition("://")[2].partition(":")[0]
        return self.master.startswith("local") or host in ("127.0.0.1", "localhost")


class JobConfig(Settings):
    """One job."""

    job: Name
    logd: HostPorts
    streams: Annotated[list[str], Field(min_length=1)]
    starting_offsets: Beginning = "earliest"
    checkpoint_dir: LocalDirectory
    checkpoint_store: AnyStore | None = None
    work_dir: LocalDirectory | None = None
    dead_letter_dir: LocalDirectory | None = None
    dead_letter_stream: DeadLetterStream | None = None
    admin: HostPort = "127.0.0.1:9296"
    admin_hosts: tuple[str, ...] = ()
    admin_access: AdminAccess | None = None
    tracing: TracingSection | None = None
    actions_token_file: Path | None = None
    trigger: Trigger = Trigger()
    source: Source = Source()
    tables: dict[Identifier, Table] = Field(default_factory=dict)
    udfs: dict[Identifier, Function] = Field(default_factory=dict)
    routing: Literal["fan_out", "first_match"] = "fan_out"
    on_malformed: Literal["dead_letters", "route"] = "dead_letters"
    routes: Annotated[list[Route], Field(min_length=1)]
    unmatched: Unmatched = Unmatched()
    sinks: Annotated[dict[Name, AnySinkConfig], Field(min_length=1)]
    spark: Spark = Spark()
    connect_timeout_s: Seconds = 10.0
    drain_timeout_s: Seconds = 10.0

    @property
    def subscription(self) -> Subscription:
        """Streams and partitions that the job reads."""
        if self.source.assign is None:
            return Subscription(names=tuple(self.streams))
        return Subscription(partitions=assigned(self.source.assign))

    @property
    def session(self) -> Spark:
        """Spark's settings, with those that follow from the rest of the job."""
        shown = self.admin_access is None if self.spark.ui is None else self.spark.ui
        jars = dict.fromkeys(str(jar) for sink in self.sinks.values() for jar in sink.spark_jars())
        conf = self.spark.conf
        if jars:
            own = filter(None, [conf.get("spark.jars")])
            conf = conf | {"spark.jars": ",".join([*own, *jars])}
        return self.spark.model_copy(update={"ui": shown, "conf": conf})

    def on_master(self, master: str) -> "JobConfig":
        """Return the job with its executors on another master.

        Raises:
            ConfigError: Clients without a token could reach them.
        """
        return self.on_spark(self.spark.model_copy(update={"master": master}))

    def on_spark(self, spark: Spark) -> "JobConfig":
        """Return the job with other settings of Spark.

        Raises:
            ConfigError: Clients without a token could reach Spark's processes.
        """
        if self.admin_access is not None and not spark.knows_its_own:
            told = _open_to_strangers(spark.master)
            raise WrongKeyError(told, fix="docs/router/cluster.md says how")
        return self.model_copy(update={"spark": spark})

    def without_waiting(self) -> "JobConfig":
        """Return the job without `min_offsets_per_trigger`; a bounded run reads to the end."""
        return self.model_copy(
            update={"trigger": self.trigger.model_copy(update={"min_offsets_per_trigger": 1})}
        )

    @property
    def working_dir(self) -> Path:
        """Temporary files, Spark's log and `endpoints.json`."""
        return self.work_dir or self.checkpoint_dir / "work"

    @property
    def dead_letters(self) -> Path:
        """Directory of the records that sinks refused for good."""
        return self.dead_letter_dir or self.checkpoint_dir / "dead_letters"

    def rules_to(self, sink: str) -> str:
        """A digest of what decides which rows a sink gets, and how they are written."""
        rules = {
            "version": version("penstock"),
            **self._routing(),
            "sink": self.sinks[sink].model_dump(mode="json"),
        }
        return _digest(rules)

    @property
    def routing_digest(self) -> str:
        """A digest of what decides which rows sinks get, whatever the version and the sinks are."""
        return _digest(self._routing())

    def _routing(self) -> dict[str, Any]:
        return {
            "routes": [route.model_dump(mode="json") for route in self.routes],
            "unmatched": self.unmatched.model_dump(mode="json"),
            "routing": self.routing,
            "on_malformed": self.on_malformed,
            "tables": {name: it.model_dump(mode="json") for name, it in self.tables.items()},
            "udfs": self.udfs,
            "subject": self.source.subject,
        }

    @property
    def sends_malformed_to_dlq(self) -> bool:
        """True if rows that are no records become dead letters and go to no sink."""
        return self.on_malformed == "dead_letters"

    def routes_to(self, sink: str) -> list[int]:
        """The numbers of the routes to a sink; that of `unmatched` comes after the last route's."""
        found = [index for index, route in enumerate(self.routes) if sink in route.sinks]
        return [*found, len(self.routes)] if sink in self.unmatched.sinks else found

    def transforms_to(self, sink: str) -> dict[int, list[Transform]]:
        """Return the transforms on the way to a sink, by index of those routes that have some."""
        steps = [*(route.transforms for route in self.routes), self.unmatched.transforms]
        return {index: steps[index] for index in self.routes_to(sink) if steps[index]}

    def route_name(self, index: int) -> str:
        """The name of a route, or `unmatched`."""
        return self.routes[index].name if index < len(self.routes) else "unmatched"

    def route_key(self, index: int) -> str:
        """Return the key of a route in the job file."""
        return f"routes.{index}" if index < len(self.routes) else "unmatched"

    @model_validator(mode="after")
    def _names_fit_together(self) -> Self:
        _refuse_repeats("streams", self.streams)
        _check_offsets(self.starting_offsets, self.streams)
        if self.source.assign is not None and set(self.source.assign) != set(self.streams):
            raise ValueError(
                f"source.assign: must name the partitions of each of the streams"
                f" ({', '.join(self.streams)}), and of no other"
            )
        _refuse_repeats("routes", [route.name for route in self.routes])
        if any(route.name == "unmatched" for route in self.routes):
            raise ValueError("routes: the name 'unmatched' is taken by the key `unmatched`")
        used = set(self.unmatched.sinks)
        key_paths = [(f"routes.{index}", route.sinks) for index, route in enumerate(self.routes)]
        for key_path, names in [*key_paths, ("unmatched", self.unmatched.sinks)]:
            _refuse_repeats(f"{key_path}.sinks", names)
            used |= set(names)
            for name in names:
                if name not in self.sinks:
                    known = ", ".join(self.sinks)
                    raise ValueError(f"{key_path}.sinks: there is no sink {name!r}, only {known}")
        for name in self.sinks:
            if name not in used:
                raise ValueError(f"sinks.{name}: no route leads to it")
        check_directories(self.checkpoint_dir, self.working_dir, self.dead_letters, self.sinks)
        return self

    @model_validator(mode="after")
    def _strangers_are_kept_out_of_spark(self) -> Self:
        if self.admin_access is not None and not self.spark.knows_its_own:
            raise ValueError(_open_to_strangers(self.spark.master))
        return self

    @model_validator(mode="before")
    @classmethod
    def _empty_blocks_are_defaults(cls, document: Any) -> Any:
        """`spark:` with nothing below is what an example leaves behind, not an error."""
        _refuse_nul(document)
        if isinstance(document, dict):
            return {key: value for key, value in document.items() if value is not None}
        return document


def _digest(rules: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(rules, sort_keys=True).encode(), digest_size=8).hexdigest()


def _open_to_strangers(master: str) -> str:
    return (
        f"spark.master: with admin_access nobody may reach Spark on {master} unknown: name the"
        " cluster's secret with spark.secret_file, or set spark.authenticate in spark.conf"
    )


def _check_offsets(wanted: str | datetime | dict[str, dict[str, int]], streams: list[str]) -> None:
    if isinstance(wanted, str | datetime):
        return
    try:
        offsets_from_json(wanted)
    except BadOptionError as error:
        raise ValueError(f"starting_offsets: {error}") from None
    for stream in wanted:
        if stream not in streams:
            raise ValueError(f"starting_offsets: {stream!r} is not among the streams")


def _refuse_nul(value: Any, key_path: str = "") -> None:
    """No name, path or condition may hold one, and where it comes to light nobody expects it."""
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{key_path}: holds a NUL")
    parts: dict[Any, Any] = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        parts = dict(enumerate(value))
    for key, part in parts.items():
        _refuse_nul(part, f"{key_path}.{key}" if key_path else str(key))


def _refuse_repeats(key_path: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key_path}: {name!r} stands there twice")
