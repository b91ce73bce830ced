"""What became of records: the jobs' answers put together, and how well all is.

The jobs say what became of each record at their sinks. Here their answers get what only the whole
pipeline knows: which collector sent the record, how fast a sink is now, and which part could not
be asked. A record that no stream has is the matter of the collectors: `Trace.edges` is for what
they say of it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.base.errors import ExitCode
from penstock.deploy.console.records import severity_of
from penstock.deploy.trace.applications import NotHandedOver
from penstock.deploy.trace.find import FoundRecord, service_of, texts_of
from penstock.deploy.trace.parts import (
    JobUnavailableError,
    Parts,
    PartsClient,
    gather_bounded,
    producers_of,
)

_DIGEST_BYTES: Final = 16
_TEXT_MAX: Final = 300
_NAME_MAX: Final = 64
"""Characters of a record's text, and of its other fields, that an answer has."""

_NAMED_MAX: Final = 4
"""Collectors that are named where none knows a record's producer."""

_RECORDS_TOGETHER: Final = 1000
"""Records of one question to a job, which reads its files once for it."""

_VERDICTS_TOGETHER: Final = 5000
"""Verdicts of one answer, of which one may have 3 KB."""

_QUESTION_BYTES: Final = 60_000
"""Bytes of one question's records; the body of a request may have 64 KiB."""

_ARRIVED: Final = frozenset({"delivered", "replayed"})
_NOT_MEANT: Final = frozenset({"not_routed", "not_read", "sampled", "deduplicated"})
"""Fates of records that a sink should not have."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record came in.

    Attributes:
        collector: Name of the collector; None: see `reason`.
        source: Its source.
        received_ns: Unix time at which the collector received it; None: the record does not say.
        reason: Why the collector is not known; empty: it is.
    """

    collector: str | None = None
    source: str | None = None
    received_ns: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordTrace:
    """One record's way.

    Attributes:
        record: The record.
        origin: Where it came in; None: the parts were not asked.
        sinks: Verdict on it of each sink, with the keys `job` and, of one that waits, `wait_s`.
    """

    record: FoundRecord
    origin: Origin | None
    sinks: Sequence[Mapping[str, Any]]

    @property
    def is_complete(self) -> bool:
        """True if there is a sink, and every one that should have the record has it."""
        fates = {it["fate"] for it in self.sinks}
        return bool(fates) and fates <= _ARRIVED | _NOT_MEANT


@dataclass(slots=True)
class Trace:
    """The answer to a question.

    Attributes:
        records: Each record's way.
        looked_at: Number of records that the search looked at.
        is_cut: Whether the search ended at its limit, and there may be more.
        silent: Parts that could not be asked, each with the reason.
        stopped: Jobs that do not answer and whose files were read instead, each with its state.
        edges: What collectors say of records that are in no stream, see `trace.edges`.
        applications: Applications that did not hand over all records.
        is_ended: Whether the search was ended before it had looked at everything.
        unknown_ids: Ids in question that no record found has, and of which no collector knows.
    """

    records: list[RecordTrace] = field(default_factory=list)
    looked_at: int = 0
    is_cut: bool = False
    silent: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    edges: list[dict[str, Any]] = field(default_factory=list)
    applications: list[NotHandedOver] = field(default_factory=list)
    is_ended: bool = False
    unknown_ids: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """0: every sink that should have a record has it; 1: one lacks it; 69: not all is known.

        A record that is nowhere, or in quarantine and not replayed, is one that a sink lacks.
        """
        if self.silent or self.is_ended:
            return ExitCode.UNAVAILABLE
        waits = any(it["fate"] == "quarantined" and not it["replayed"] for it in self.edges)
        is_well = self.records and all(it.is_complete for it in self.records)
        is_missed = waits or self.unknown_ids or not is_well
        return ExitCode.FAILURE if is_missed else ExitCode.OK

    def as_json(self) -> dict[str, Any]:
        """The answer for programs."""
        return {
            "records": [_record_json(it) for it in self.records],
            "looked_at": self.looked_at,
            "more": self.is_cut,
            "ended": self.is_ended,
            "not_asked": self.silent,
            "not_running": self.stopped,
            "edges": self.edges,
            "applications": [it.as_json() for it in self.applications],
            "unknown_ids": self.unknown_ids,
            "complete": self.exit_code is ExitCode.OK and not self.is_cut,
        }


async def explain(client: PartsClient, parts: Parts, records: Sequence[FoundRecord]) -> Trace:
    """Ask every job what became of records.

    Args:
        client: Asks the parts.
        parts: The parts, as `PartsClient.statuses` found them.
        records: Records of the log.
    """
    trace = Trace(silent=dict(parts.silent), stopped=dict(parts.stopped))
    asked = [_ask(client, name, status, records, trace) for name, status in parts.jobs.items()]
    answers = await gather_bounded(asked)
    producers = producers_of(parts.collectors)
    for record in records:
        verdicts = [it for answer in answers for it in answer.get(record.position, ())]
        origin = _origin(record, producers, parts)
        trace.records.append(RecordTrace(record, origin, verdicts))
    return trace


async def _ask(
    client: PartsClient,
    name: str,
    status: Mapping[str, Any],
    records: Sequence[FoundRecord],
    trace: Trace,
) -> dict[str, list[Mapping[str, Any]]]:
    """One job's verdicts, by the record's position."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for asked in _questions(records, len(status.get("info", {}).get("sinks", ()))):
        try:
            answer = await client.ask_job(name, {"do": "explain", "records": asked})
        except JobUnavailableError as error:
            trace.silent[name] = str(error)
            trace.stopped.pop(name, None)
            break
        for it in answer.get("records", ()):
            position = f"{it['stream']}/{it['partition']}/{it['offset']}"
            found[position] = [_completed(one, answer["job"], status) for one in it["sinks"]]
    return found


def _questions(records: Sequence[FoundRecord], sinks: int) -> Iterator[list[list[Any]]]:
    """Yield the names of records in pieces whose answers a job with so many sinks can give."""
    upto = max(1, min(_RECORDS_TOGETHER, _VERDICTS_TOGETHER // max(1, sinks)))
    piece, size = list[list[Any]](), 0
    for record in records:
        name = named(record)
        size += (own := len(json.dumps(name)))
        if piece and (len(piece) == upto or size > _QUESTION_BYTES):
            yield piece
            piece, size = [], own
        piece.append(name)
    if piece:
        yield piece


def named(record: FoundRecord) -> list[Any]:
    """The record's name in a question to a job, with the digest that shows that it was read."""
    digest = None
    if not record.missing:
        digest = hashlib.blake2b(record.value or b"", digest_size=_DIGEST_BYTES).hexdigest()
    return [record.stream, record.partition, record.offset, digest]


def _completed(
    verdict: Mapping[str, Any], job: str, status: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A verdict with what the job's status says of the sink: its pace and its problem."""
    found = {"job": job, **verdict}
    if verdict["fate"] != "waiting":
        return found
    sink = status.get("info", {}).get("sinks", {}).get(verdict["sink"], {})
    if problem := sink.get("problem"):
        return found | {"problem": problem}
    pace, behind = sink.get("records_per_s", 0), verdict.get("behind")
    if pace and behind is not None:
        found["wait_s"] = round((behind + 1) / pace, 1)
    return found


def _origin(record: FoundRecord, producers: Mapping[str, tuple[str, str]], parts: Parts) -> Origin:
    received = record.fields().get("observed_time_unix_nano")
    received_ns = received if isinstance(received, int) else None
    if record.missing:
        return Origin(reason="unknown, for the log does not have the record")
    if record.producer is None:
        return Origin(received_ns=received_ns, reason="it was published over NATS directly")
    if record.producer in producers:
        return Origin(*producers[record.producer], received_ns)
    names = [*parts.collectors]
    asked = ", ".join(names[:_NAMED_MAX]) or "none"
    if len(names) > _NAMED_MAX:
        asked += f" and {len(names) - _NAMED_MAX} more"
    reason = f"no collector that was asked ({asked}) knows the producer {record.producer[:8]}"
    return Origin(received_ns=received_ns, reason=reason)


def _record_json(trace: RecordTrace) -> dict[str, Any]:
    record, origin, fields = trace.record, trace.origin, trace.record.fields()
    return {
        "stream": record.stream,
        "partition": record.partition,
        "offset": record.offset,
        "subject": record.subject or None,
        "time_ns": record.timestamp_ns,
        "missing": record.missing or None,
        "trace_id": fields.get("trace_id"),
        "record_id": fields.get("record_id"),
        **_said_by(record, fields),
        "origin": None
        if origin is None
        else {
            "collector": origin.collector,
            "source": origin.source,
            "received_ns": origin.received_ns,
            "reason": origin.reason or None,
            "producer": record.producer,
            "sequence": record.sequence,
        },
        "sinks": list(trace.sinks),
        "complete": trace.is_complete,
    }


def _said_by(record: FoundRecord, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says in short; `span` has the rest of what a waterfall of a trace needs."""
    raw = "" if record.value is None else record.value[:_TEXT_MAX].decode(errors="replace")
    found: dict[str, Any] = {
        "own_time_ns": _whole(fields.get("time_unix_nano")),
        "kind": _text(fields.get("kind")),
        "service": service_of(fields) or None,
        "severity": severity_of(record.value) or None,
        "severity_text": _text(fields.get("severity_text")),
        "text": (texts_of(fields) or [raw])[0][:_TEXT_MAX],
        "span_id": _text(fields.get("span_id")),
    }
    if fields.get("kind") == "span":
        found["span"] = {
            "parent_span_id": _text(fields.get("parent_span_id")),
            "span_kind": _text(fields.get("span_kind")),
            "status_code": _text(fields.get("status_code")),
            "start_ns": _whole(fields.get("time_unix_nano")),
            "end_ns": _whole(fields.get("end_time_unix_nano")),
        }
    return found


def _text(value: object) -> str | None:
    return value[:_NAME_MAX] if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if type(value) is int else None
