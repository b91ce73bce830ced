"""Messages of the source `socket` as records, by their codec.

    text     the record's body; a structured line is taken apart as that of a file
    json     an object: level, time, message and trace by the keys of known loggers
    logfmt   ``key=value`` pairs, likewise
    gelf     `penstock.collector.decode.senders.gelf`
    cef      `penstock.collector.decode.formats.security_events`
    leef     likewise

A message that is not of the codec is refused with the reason, and goes to quarantine.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.collector.decode.formats.key_values import read_logfmt
from penstock.collector.decode.formats.security_events import (
    CEF,
    LEEF,
    Event,
    EventForm,
    first_text,
    read_cef,
    read_leef,
    severity_of_event,
    time_of_event,
)
from penstock.collector.decode.lines import read_object
from penstock.collector.decode.senders.gelf import inflate, read_gelf
from penstock.collector.decode.senders.record_maker import About, RecordMaker
from penstock.collector.decode.shapes import Made
from penstock.collector.decode.syslog import header_attributes, parse_message
from penstock.collector.errors import UndecodableError
from penstock.collector.limits import UNIT_DECOMPRESSED_BYTES_MAX
from penstock.collector.sources.network.framing import messages_in
from penstock.collector.spool.spool import Unit


@dataclass(slots=True)
class _Sender:
    """What is known of the messages of one unit besides their bytes.

    Attributes:
        fields: Keys that name the service, the first that an event has counts.
        left_bytes: Bytes that its compressed messages may still become.
        max_bytes: Bytes that one of them may become.
    """

    records: RecordMaker
    service: str
    fields: Sequence[str]
    peer: str
    max_bytes: int
    left_bytes: int = UNIT_DECOMPRESSED_BYTES_MAX

    def resource_of(self, event: Mapping[str, Any], host: str = "") -> Mapping[str, Any]:
        """The resource that an event names, on its host, or on its sender's unless it is local."""
        service = first_text(event, self.fields) or self.service
        if not host and not self.peer.startswith(("127.", "::1")):
            host = self.peer
        return self.records.resource_of(service, host)

    def beside(self, *, cut: bool) -> dict[str, Any]:
        """Attributes of a message that do not stand in it."""
        found: dict[str, Any] = {"network.peer.address": self.peer} if self.peer else {}
        if cut:
            found["log.record.truncated"] = True
        return found


Decode = Callable[[bytes, _Sender, bool], Made]


def decode_socket(
    unit: Unit, records: RecordMaker
) -> Iterator[tuple[bytes, Made | UndecodableError]]:
    """The messages of a unit, each with its record or why it is none.

    Args:
        unit: Messages, side by side.
        records: Makes the records, and counts what is not understood.

    Raises:
        UndecodableError: The unit is not one of messages.
    """
    meta = unit.meta
    sender = _Sender(
        records, meta["service"], meta["service_fields"], meta["peer"], meta["max_message_bytes"]
    )
    decode, cut = CODECS[meta["codec"]], frozenset(meta.get("truncated", ()))
    for index, message in enumerate(messages_in(unit.payload)):
        try:
            yield message, decode(message, sender, index in cut)
        except UndecodableError as error:
            yield message, error


def _decode_text(message: bytes, sender: _Sender, cut: bool) -> Made:
    about = About(sender.beside(cut=cut))
    return sender.records.text(message, sender.resource_of({}), about)


def _decode_json(message: bytes, sender: _Sender, cut: bool) -> Made:
    fields, is_repaired = read_object(message)
    if fields is None:
        raise UndecodableError("json: the message is no JSON object")
    sender.records.notes["lines_repaired"] += is_repaired
    return _structured(fields, sender, cut)


def _decode_logfmt(message: bytes, sender: _Sender, cut: bool) -> Made:
    fields = read_logfmt(message.decode("utf-8", "replace"), sender.records.notes)
    if fields is None:
        raise UndecodableError("logfmt: the message has no pair of a key and a value")
    return _structured(fields, sender, cut)


def _structured(fields: dict[str, Any], sender: _Sender, cut: bool) -> Made:
    about = About(sender.beside(cut=cut))
    return sender.records.event(fields, sender.resource_of(fields), about)


def _decode_gelf(message: bytes, sender: _Sender, cut: bool) -> Made:
    text = inflate(message, min(sender.max_bytes, sender.left_bytes))
    sender.left_bytes -= len(text)
    found, is_repaired = read_gelf(text)
    records = sender.records
    records.notes["lines_repaired"] += is_repaired
    if not found.is_known_version:
        records.notes["versions_unknown"] += 1
    attributes = {**found.attributes, **sender.beside(cut=cut)}
    about = About(attributes, records.time_of(found.time), found.level)
    resource = sender.resource_of(found.attributes, found.host)
    return records.text(found.text, resource, about)


def _decode_event(read: Callable[[str, Counter[str]], Event | None], form: EventForm) -> Decode:
    """A decoder of security events, which may stand behind the head of a syslog message."""

    def decode(message: bytes, sender: _Sender, cut: bool) -> Made:
        records = sender.records
        event = read(message.decode("utf-8", "replace"), records.notes)
        if event is None:
            raise UndecodableError(f"{form.name}: the message is no event of this format")
        head = parse_message(message[: max(0, message.find(form.marker))], records.now_ns)
        time_ns, is_there = time_of_event(event, form, records.now_ns)
        if is_there and time_ns is None:
            records.notes["timestamps_unreadable"] += 1
        elif is_there and head.has_time:
            records.notes["syslog_times_dropped"] += 1
        level = ""
        if given := event.get(form.severity):
            found = severity_of_event(given)
            level = given[:64] if found is None else found[1]
        attributes = {**event, **header_attributes(head), **sender.beside(cut=cut)}
        resource = sender.resource_of(event, head.host.decode("utf-8", "replace"))
        about = About(attributes, head.time_ns if time_ns is None else time_ns, level)
        return records.text(first_text(event, form.bodies), resource, about)

    return decode


CODECS: Final[Mapping[str, Decode]] = {
    "text": _decode_text,
    "json": _decode_json,
    "gelf": _decode_gelf,
    "cef": _decode_event(read_cef, CEF),
    "leef": _decode_event(read_leef, LEEF),
    "logfmt": _decode_logfmt,
}
"""The decoder of each codec."""
