"""The options of `format("logd")`, checked; named and meant as those of Spark's Kafka source."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, cast

from pyspark.sql.types import BinaryType, StructType

from penstock.base.clock import BlockingClock
from penstock.logd.client import Access
from penstock.router.columns.filters import Filter, columns_of, filter_from_json
from penstock.router.columns.passthrough import PASSTHROUGH
from penstock.router.columns.schema import VIEWS, View, ViewName, view
from penstock.router.columns.spec_versions import SpecVersions, known_versions
from penstock.router.errors import BadOptionError
from penstock.router.read.logd_reader import LogdReader
from penstock.router.read.offset_spec import (
    OffsetSpec,
    Strategy,
    Subscription,
    Times,
    assigned,
    check_pattern,
    check_subject,
    times_by_partition,
)
from penstock.router.read.offsets import EARLIEST, LATEST, Offsets, offsets_from_json

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "logd": ("required", "logd's fetch endpoint, `HOST:PORT`; of a cluster some, joined by commas"),
    "subscribe": ("one of three", "stream names, joined by commas"),
    "subscribePattern": (
        "one of three",
        "a regular expression of RE2, for whole names; streams made later are read, too",
    ),
    "assign": ("one of three", 'some partitions only: `{"logs": [0, 1]}`'),
    "startingOffsets": (
        "`latest`; of a batch `earliest`",
        '`earliest`, `latest`, or `{"logs": {"0": 123}}`; -2 is the earliest, -1 the latest',
    ),
    "startingOffsetsByTimestamp": (
        "none",
        'by partition, `{"logs": {"0": MS}}`: the first record at or after a time, ms since 1970',
    ),
    "startingTimestamp": ("none", "one time for all partitions; goes before the two above"),
    "startingOffsetsByTimestampStrategy": (
        "`error`",
        "where no record is that young: `error`, or `latest` to begin at the end",
    ),
    "endingOffsets": ("`latest`", "batch only: `latest`, or JSON; the end is exclusive"),
    "endingOffsetsByTimestamp": ("none", "batch only: up to the first record at or after a time"),
    "endingTimestamp": ("none", "batch only: one time for all partitions"),
    "maxOffsetsPerTrigger": ("no limit", "stream only: records of one micro-batch"),
    "maxBytesPerTrigger": (
        "no limit",
        "stream only: about so many bytes of records, in memory, of one micro-batch",
    ),
    "maxBytesOfFirstTrigger": (
        "`maxBytesPerTrigger`",
        "stream only: about so many bytes of the first micro-batch; the bound then doubles",
    ),
    "maxBytesPerTask": (
        "no limit; 8388608 with `maxBytesPerTrigger`",
        "about so many bytes of records, in memory, that one task reads",
    ),
    "minOffsetsPerTrigger": ("none", "stream only: with fewer a micro-batch waits"),
    "maxTriggerDelay": ("`15m`", "stream only: for so long at most: `30s`, `15m`, `1h`"),
    "batchInterval": (
        "none",
        "stream only, with `processingTime` 0: waits; small batches are so far apart: `2s`",
    ),
    "minPartitions": ("one per partition", "tasks that a batch is read in, about"),
    "wholePartitions": (
        "`false`",
        "stream only: one task a partition, whatever `minPartitions` and `maxBytesPerTask` are",
    ),
    "failOnDataLoss": ("`true`", "fail, rather than go on without records that are gone"),
    "includeHeaders": ("`false`", "adds the column `headers`"),
    "subject": ("all", "a NATS subject, `*` and `>` allowed; logd sends no other records"),
    "readFrom": (
        "`leader`",
        "`replica`: from a replica in sync that does not lead, if there is one",
    ),
    "rack": ("any", "with that: from one in this rack, if there is one"),
    "view": (
        "`raw`",
        "typed columns: `records`, `logs`, `spans`, `metrics`, `events` or `audits`; see Columns",
    ),
    "columns": ("all", "names of columns, joined by commas; the others are not made"),
    "passThrough": (
        "none",
        "names of columns, joined by commas, that Spark gets as one value, `_passthrough`",
    ),
    "filter": ("none", "JSON; only rows that pass go to Spark; `penstock.router.columns.filters`"),
    "pushFilters": (
        "`false`",
        "batch only: takes over conditions; set `spark.sql.python.filterPushdown.enabled`, too",
    ),
    "specs": ("installed ones", "modules with specs and their upcasters, joined by commas"),
    "planIn": ("none", "stream only: a file for the bytes and tasks of the batch planned last"),
    "measureSizes": (
        "`false`",
        "stream only: fetch every frame to plan a batch, not some, and bound its bytes exactly",
    ),
    "retryTimeoutSeconds": ("120", "how long an unreachable logd is waited for"),
    "tokenFile": ("none", "a file with a token or an API key, there where tasks run as well"),
    "tls": ("`false`", "whether to connect with TLS; `tlsCaFile` and `certFile` turn it on, too"),
    "tlsCaFile": ("the system's", "PEM; the authority of logd's certificate"),
    "certFile": ("none", "PEM; the certificate to be known by"),
    "keyFile": ("none", "PEM; its key"),
}
"""Default and meaning by name; a test compares docs/router/data-source.md with it."""

_BATCH_ONLY: Final = frozenset(
    {
        "endingOffsets",
        "endingOffsetsByTimestamp",
        "endingTimestamp",
        "pushFilters",
    }
)
_STREAM_ONLY: Final = frozenset(
    {
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "maxBytesOfFirstTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "batchInterval",
        "wholePartitions",
        "planIn",
        "measureSizes",
    }
)

_RETRY_TIMEOUT_S: Final = "120"
_TRIGGER_DELAY: Final = "15m"
_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)")
_UNIT_NS: Final = {
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, checked; see `OPTIONS`."""

    logd: str
    subscription: Subscription
    starting: OffsetSpec
    ending: OffsetSpec
    max_rows: int | None
    max_bytes: int | None
    first_bytes: int | None
    task_bytes: int | None
    min_rows: int | None
    trigger_delay_ns: int
    batch_interval_ns: int | None
    min_partitions: int
    whole_partitions: bool
    fail_on_data_loss: bool
    subject: str | None
    retry_timeout_s: float
    access: Access
    rack: str | None
    view: View
    columns: tuple[str, ...] | None
    pass_through: tuple[str, ...]
    only: Filter | None
    push_filters: bool
    versions: SpecVersions
    plan_in: Path | None
    measures: bool

    def struct(self, names: Iterable[str] | None) -> StructType:
        """The columns that Spark gets, those of the view by their names; None: all."""
        found = self.view.struct(names)
        return found.add(PASSTHROUGH, BinaryType()) if self.pass_through else found

    def bytes_after(self, before: int | None) -> int | None:
        """The bytes that a batch may have; None: any number.

        Args:
            before: Those that the batch before it might have had; None: it is the first one.
        """
        if self.max_bytes is None or self.first_bytes is None:
            return self.max_bytes
        return min(self.max_bytes, self.first_bytes if before is None else 2 * before)

    def reading(self, clock: BlockingClock) -> LogdReader:
        """A reader of the log with these options."""
        return LogdReader(
            self.logd,
            retry_timeout_s=self.retry_timeout_s,
            clock=clock,
            access=self.access,
            rack=self.rack,
        )


def parse_options(
    options: Mapping[str, str],
    *,
    streaming: bool | None = None,
    before: SourceOptions | None = None,
) -> SourceOptions:
    """Check the options of the data source.

    Args:
        options: Options by name, in any case.
        streaming: Whether for a stream or a batch; None: not known yet.
        before: What the same options gave before; what was looked up in the specs is taken from it.

    Raises:
        BadOptionError: One is missing, unknown, out of place, or of the wrong form.
    """
    given = _Given(options, streaming=streaming)
    rack = given.text("rack") or ""
    read_from = given.choice("readFrom", ("leader", "replica"), "leader")
    if rack and read_from == "leader":
        raise BadOptionError("option rack needs readFrom=replica")
    found = _view(given) if before is None else before.view
    return SourceOptions(
        logd=given.need("logd"),
        subscription=_subscription(given),
        starting=_offset_spec(given, "starting", LATEST if streaming else EARLIEST),
        ending=_offset_spec(given, "ending", LATEST),
        max_rows=given.positive("maxOffsetsPerTrigger"),
        max_bytes=given.positive("maxBytesPerTrigger"),
        first_bytes=given.positive("maxBytesOfFirstTrigger"),
        task_bytes=given.positive("maxBytesPerTask"),
        min_rows=_rows_min(given),
        trigger_delay_ns=given.duration_ns("maxTriggerDelay", _TRIGGER_DELAY),
        batch_interval_ns=_batch_interval_ns(given),
        min_partitions=given.positive("minPartitions") or 1,
        whole_partitions=given.flag("wholePartitions", default=False),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        subject=_subject(given),
        retry_timeout_s=given.seconds("retryTimeoutSeconds", _RETRY_TIMEOUT_S),
        access=_access(given),
        rack=rack if read_from == "replica" else None,
        view=found,
        columns=given.names("columns") or None,
        pass_through=given.names("passThrough"),
        only=_filter(given, found),
        push_filters=given.flag("pushFilters", default=False),
        versions=_versions(given, found) if before is None else before.versions,
        plan_in=Path(plan_in) if (plan_in := given.text("planIn")) else None,
        measures=given.flag("measureSizes", default=False),
    )


class _Given:
    """Options by lower-case name."""

    def __init__(self, options: Mapping[str, str], *, streaming: bool | None) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in OPTIONS}
        for name in self._given:
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"; is {known[near[0]]} meant?" if near else ""
                raise BadOptionError(f"there is no option {name!r}{hint}")
            out_of_place = _BATCH_ONLY if streaming else _STREAM_ONLY
            if streaming is not None and known[name] in out_of_place:
                kind = "a stream" if streaming else "a batch"
                raise BadOptionError(f"option {known[name]} is not for {kind}")

    def text(self, name: str) -> str | None:
        """A text that is not blank."""
        return (self._given.get(name.lower()) or "").strip() or None

    def need(self, name: str) -> str:
        """A text that must be there."""
        value = self.text(name)
        if value is None:
            raise BadOptionError(f"option {name} is required")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """Names joined by commas."""
        return tuple(part.strip() for part in (self.text(name) or "").split(",") if part.strip())

    def document(self, name: str, otherwise: str = "JSON") -> Any:
        """JSON."""
        text = self.text(name)
        try:
            return None if text is None else json.loads(text)
        except json.JSONDecodeError:
            raise BadOptionError(f"option {name} must be {otherwise}, not {text!r}") from None

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """One of some words."""
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise BadOptionError(f"option {name} must be {' or '.join(choices)}, not {value!r}")
        return value

    def positive(self, name: str) -> int | None:
        """A number from 1 on."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise BadOptionError(f"option {name} must be a number from 1 on, not {text!r}")
        return int(text)

    def milliseconds(self, name: str) -> int | None:
        """A time."""
        text = self.text(name)
        if text is not None and not text.isdecimal():
            raise BadOptionError(f"option {name} must be milliseconds since 1970 UTC, not {text!r}")
        return None if text is None else int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def seconds(self, name: str, default: str) -> float:
        """Seconds from 0 on."""
        text = self.text(name) or default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise BadOptionError(f"option {name} must be seconds from 0 on, not {text!r}")
        return value

    def duration_ns(self, name: str, default: str) -> int:
        """A duration such as 15m."""
        text = self.text(name) or default
        found = _DURATION.fullmatch(text)
        if found is None:
            raise BadOptionError(f"option {name} must be a duration such as 30s or 15m: {text!r}")
        return int(found[1]) * _UNIT_NS[found[2]]


def _subscription(given: _Given) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if given.text(name)]
    if len(chosen) != 1:
        raise BadOptionError(
            f"just one of the options {', '.join(names)} is needed;"
            f" given: {', '.join(chosen) or 'none that names a stream'}"
        )
    pattern = given.text("subscribePattern")
    if pattern is not None:
        check_pattern(pattern)
        return Subscription(pattern=pattern)
    if chosen == ["assign"]:
        return Subscription(partitions=assigned(given.document("assign")))
    streams = given.names("subscribe")
    if not streams:
        raise BadOptionError("option subscribe names no stream")
    return Subscription(names=tuple(dict.fromkeys(streams)))


def _offset_spec(given: _Given, which: Literal["starting", "ending"], default: int) -> OffsetSpec:
    """Return the begin or end: a time takes precedence over times by partition, then offsets."""
    strategy: Strategy = "latest"
    if which == "starting":
        name = "startingOffsetsByTimestampStrategy"
        strategy = cast("Strategy", given.choice(name, ("error", "latest"), "error"))
    every = given.milliseconds(f"{which}Timestamp")
    if every is not None:
        return Times(every=every, strategy=strategy)
    by_time = f"{which}OffsetsByTimestamp"
    document = given.document(by_time)
    if document is not None:
        return Times(each=times_by_partition(document, by_time), strategy=strategy)
    name = f"{which}Offsets"
    text = given.text(name)
    if text is None:
        return default
    if text in ("earliest", "latest"):
        if which == "ending" and text == "earliest":
            raise BadOptionError("option endingOffsets cannot be earliest")
        return EARLIEST if text == "earliest" else LATEST
    wanted: Offsets = offsets_from_json(given.document(name, "earliest, latest or JSON"))
    if which == "ending" and EARLIEST in wanted.next.values():
        raise BadOptionError("option endingOffsets cannot be earliest, -2")
    return wanted


def _rows_min(given: _Given) -> int | None:
    min_rows, max_rows = (
        given.positive("minOffsetsPerTrigger"),
        given.positive("maxOffsetsPerTrigger"),
    )
    if min_rows is not None and max_rows is not None and min_rows > max_rows:
        raise BadOptionError(
            f"option minOffsetsPerTrigger ({min_rows}) is above maxOffsetsPerTrigger ({max_rows})"
        )
    return min_rows


def _batch_interval_ns(given: _Given) -> int | None:
    name = "batchInterval"
    return None if given.text(name) is None else given.duration_ns(name, "")


def _view(given: _Given) -> View:
    name = given.choice("view", VIEWS, "raw")
    found = view(
        cast("ViewName", name), include_headers=given.flag("includeHeaders", default=False)
    )
    found.struct((*given.names("columns"), *given.names("passThrough")))
    return found


def _versions(given: _Given, found: View) -> SpecVersions:
    return known_versions(given.names("specs")) if found.is_typed else SpecVersions()


def _filter(given: _Given, found: View) -> Filter | None:
    document = given.document("filter")
    if document is None:
        return None
    condition = filter_from_json(document)
    found.struct(columns_of(condition))
    return condition


def _subject(given: _Given) -> str | None:
    subject = given.text("subject")
    try:
        return None if subject is None else check_subject(subject)
    except BadOptionError as error:
        raise BadOptionError(f"option subject: {error}") from None


def _access(given: _Given) -> Access:
    try:
        return Access(
            tls=given.flag("tls", default=False),
            ca_file=given.text("tlsCaFile"),
            cert_file=given.text("certFile"),
            key_file=given.text("keyFile"),
            token_file=given.text("tokenFile"),
        )
    except ValueError as error:
        raise BadOptionError(f"options keyFile, certFile, tokenFile: {error}") from None
