"""Spooled units taken apart into record lines, by the format that they were received in."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import structlog

from penstock.collector.decode.journald import decode_entry
from penstock.collector.decode.line_rules import OnError, rules_of
from penstock.collector.decode.lines import LineContext, PlainLines, decode_line, log_record
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.decode.senders.socket import decode_socket
from penstock.collector.decode.shapes import Made, ShapedEvents
from penstock.collector.decode.syslog import decode_syslog
from penstock.collector.decompression import unzstd
from penstock.collector.errors import RemoteProtocolError, UndecodableError
from penstock.collector.limits import (
    SERVICE_CHARACTERS_MAX,
    UNIT_DECOMPRESSED_BYTES_MAX,
    UNIT_RECORDS_MAX,
)
from penstock.collector.sources.forward.fragments import join_fragments
from penstock.collector.sources.forward.protocol import BadEntry, Event, decode_message, messages_in
from penstock.collector.sources.network.framing import pack_messages
from penstock.collector.sources.unix.framing import decode_batch_header
from penstock.collector.spool.spool import Unit
from penstock.specs.validate.verdict import Verdicts

REASON_MAX: Final = 200
"""Characters of a reason that an exception gave."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that should have been `count` records."""

    index: int
    reason: str
    raw: bytes
    count: int = 1


@dataclass(slots=True)
class Decoded:
    """The records of one unit.

    Attributes:
        resource: The resource of lines without one.
        indexes: Positions of the lines within the unit, rising; an `Undecodable` takes `count`.
        verdicts: The validator's verdicts on the lines, where they are known; else empty.
        notes: Count of what was not understood of the records, by reason; they are records all the
            same.
        ended: Treatment of records whose time cannot be read, by index, unless they are passed on.
    """

    resource: Mapping[str, Any] = field(default_factory=dict)
    indexes: list[int] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    undecodable: list[Undecodable] = field(default_factory=list)
    verdicts: Verdicts = field(default_factory=lambda: Verdicts([], []))
    notes: Counter[str] = field(default_factory=Counter)
    ended: dict[int, OnError] = field(default_factory=dict)

    def add(self, index: int, made: Made) -> None:
        """Take the record that was made of what stands there."""
        self.indexes.append(index)
        self.lines.append(made[0])
        self.verdicts.append(made[1])

    @property
    def count(self) -> int:
        """Records, readable or not."""
        return len(self.lines) + sum(part.count for part in self.undecodable)


def decode_records(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    """Take a unit apart; what cannot be read is named, never raised.

    Args:
        unit: The unit as it was spooled.
        resource: The collector's defaults for records that come without a resource.
    """
    decoder = _DECODERS.get(unit.format)
    if decoder is None:
        return _nothing(unit, f"unknown_format: {unit.format}")
    try:
        decoded = decoder(unit, resource)
    except (UndecodableError, RemoteProtocolError) as error:
        return _nothing(unit, f"undecodable: {error}")
    except Exception as error:  # noqa: BLE001 - whatever fails, the next unit goes on
        _log.exception("decoder_failed", format=unit.format, source=unit.source)
        return _nothing(unit, f"decoder_failed: {type(error).__name__}: {error}"[:REASON_MAX])
    if decoded.count > UNIT_RECORDS_MAX:
        return _nothing(unit, f"more than {UNIT_RECORDS_MAX} records in a unit")
    return decoded


def _nothing(unit: Unit, reason: str) -> Decoded:
    part = Undecodable(0, reason, unit.payload, max(unit.count, 1))
    return Decoded(undecodable=[part])


def _decode_unix(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    header = decode_batch_header(unit.payload)
    body = unit.payload[header.body_at :]
    if header.codec == "zstd" and body:
        body = unzstd(body, UNIT_DECOMPRESSED_BYTES_MAX)
    lines = [line for line in body.split(b"\n") if line]
    return Decoded(header.resource or resource, list(range(len(lines))), lines)


def _decode_ndjson(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    """Record lines; some may stand for what could not be made one, with the reason in `meta`."""
    refused: dict[int, str] = dict(unit.meta.get("refused", ()))
    lines = [line for line in unit.payload.split(b"\n") if line]
    decoded = Decoded(unit.meta.get("resource") or resource)
    if not refused:
        decoded.indexes, decoded.lines = [*range(len(lines))], lines
        return decoded
    for index, line in enumerate(lines):
        if index in refused:
            decoded.undecodable.append(Undecodable(index, refused[index], line))
        else:
            decoded.indexes.append(index)
            decoded.lines.append(line)
    return decoded


def _decode_lines(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    own = {**resource, "service.name": unit.meta["service"]}
    rules = rules_of(unit.meta.get("rules", {}))
    context = LineContext(own, unit.meta.get("attributes", {}), rules)
    cut = frozenset(unit.meta.get("truncated", ()))
    plain = PlainLines(context, unit.received_ns)
    decoded = Decoded()
    lines = unit.payload.split(b"\n")
    records, verdicts, _ = plain.make_together(lines)
    if all(records) and not cut:
        return Decoded({}, [*range(len(lines))], [*filter(None, records)], verdicts=verdicts)
    for index, (raw, made) in enumerate(zip(lines, records, strict=True)):
        if made is not None and index not in cut:
            decoded.add(index, (made, verdicts[index]))
            continue
        record, end = decode_line(
            raw, context, unit.received_ns, truncated=index in cut, notes=decoded.notes
        )
        decoded.add(index, (record, None))
        if end != "pass":
            decoded.ended[index] = end
    return decoded


def _decode_forward(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    decoded = Decoded()
    events: list[tuple[int, Event, bytes]] = []
    index = 0
    for raw in messages_in(unit.payload):
        try:
            found = decode_message(raw, decoded.notes)
        except UndecodableError as error:
            part = Undecodable(index, str(error), raw)
            decoded.undecodable.append(part)
            index += part.count
            continue
        for at, event in enumerate(found, index):
            if isinstance(event, BadEntry):
                decoded.undecodable.append(Undecodable(at, event.reason, event.raw))
            else:
                events.append((at, event, raw))
        index += len(found)
    _encode_events(events, decoded, unit, resource)
    return decoded


def _encode_events(
    events: list[tuple[int, Event, bytes]],
    decoded: Decoded,
    unit: Unit,
    resource: Mapping[str, Any],
) -> None:
    """Add the lines of events, each with its message; fragments of a line are one."""
    joined = join_fragments((at, event) for at, event, _ in events)
    tagged: dict[str, ShapedEvents] = {}
    for at, came, raw in events:
        event = came
        if at in joined:
            whole = joined[at]
            if whole is None:
                continue
            event = whole[0]._replace(record=whole[1])
        try:
            made = _plain_event(event, unit, resource, tagged)
            if made is None:
                made = _encode_event(event, unit, resource, decoded.notes), None
        except (orjson.JSONEncodeError, RecursionError) as error:
            decoded.undecodable.append(Undecodable(at, f"forward: {error}", raw))
        else:
            decoded.add(at, made)


def _decode_journal(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    decoded = Decoded()
    for index, entry in enumerate(unit.payload.split(b"\n")):
        try:
            line = decode_entry(
                entry, unit.meta["service"], resource, unit.received_ns, decoded.notes
            )
        except (UndecodableError, orjson.JSONEncodeError, RecursionError) as error:
            decoded.undecodable.append(Undecodable(index, str(error), entry))
        else:
            decoded.indexes.append(index)
            decoded.lines.append(line)
    return decoded


def _decode_syslog(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    notes = Counter[str]()
    made = decode_syslog(unit, resource, notes)
    lines, verdicts = [line for line, _ in made], Verdicts.of([verdict for _, verdict in made])
    return Decoded({}, [*range(len(lines))], lines, verdicts=verdicts, notes=notes)


def _decode_socket(unit: Unit, resource: Mapping[str, Any]) -> Decoded:
    records = RecordMaker(resource, unit.received_ns)
    decoded = Decoded(notes=records.notes)
    for index, (message, made) in enumerate(decode_socket(unit, records)):
        if isinstance(made, UndecodableError):
            part = Undecodable(index, str(made), pack_messages([message]))
            decoded.undecodable.append(part)
        else:
            decoded.add(index, made)
    return decoded


def _plain_event(
    event: Event, unit: Unit, resource: Mapping[str, Any], tagged: dict[str, ShapedEvents]
) -> Made | None:
    """An event's record; None when it is not plain. `tagged` is what is known of each tag."""
    if event.time_ns is None or event.metadata:
        return None
    known = tagged.get(event.tag)
    if known is None:
        own, added = _resource_of(event, unit, resource), {"fluent.tag": event.tag}
        known = ShapedEvents(own, added, unit.received_ns, timed=True)
        tagged[event.tag] = known
    return known.make(event.record, time_ns=event.time_ns)


def _encode_event(
    event: Event, unit: Unit, resource: Mapping[str, Any], notes: Counter[str]
) -> bytes:
    fields = {str(key): value for key, value in event.record.items()}
    if event.metadata:
        fields["fluent.metadata"] = event.metadata
    record = log_record(
        fields,
        {"fluent.tag": event.tag},
        _resource_of(event, unit, resource),
        unit.received_ns,
        time_ns=event.time_ns,
        needs_time=True,
        notes=notes,
    )
    return orjson.dumps(record)


def _resource_of(event: Event, unit: Unit, resource: Mapping[str, Any]) -> dict[str, Any]:
    service = unit.meta["service"]
    if service == "from_tag":
        service = event.tag.partition(".")[0][:SERVICE_CHARACTERS_MAX] or "unknown"
    return {**resource, "service.name": service}


_DECODERS: Final[dict[str, Callable[[Unit, Mapping[str, Any]], Decoded]]] = {
    "unix": _decode_unix,
    "ndjson": _decode_ndjson,
    "lines": _decode_lines,
    "forward": _decode_forward,
    "syslog": _decode_syslog,
    "socket": _decode_socket,
    "journal": _decode_journal,
}

__all__ = ["Decoded", "Undecodable", "decode_records"]
