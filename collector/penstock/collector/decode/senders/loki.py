"""Decoder of Grafana Loki's push API to log records.

From Loki's "HTTP API" and its ``push.proto``: streams of labels, each with entries of a time in
nanoseconds, a line and perhaps structured metadata. In JSON labels are an object, in protobuf text
as ``{app="shop", env="prod"}``. Labels and metadata become attributes; the level that Loki's agents
put into one of them is the record's where the line names none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.collector.decode.senders.protobuf import Field, describe, parse
from penstock.collector.decode.senders.record_maker import About, RecordMaker, read_json
from penstock.collector.decode.shapes import Made
from penstock.collector.errors import RemoteProtocolError
from penstock.specs.limits import INT64_MAX

Json = dict[str, Any]
Entry = tuple[int, str | bytes, Mapping[str, Any]]
"""Time, line and metadata of an entry."""

PUSH: Final = describe(
    "penstock.loki",
    {
        "PushRequest": {"streams": Field(1, "Stream", is_repeated=True)},
        "Stream": {
            "labels": Field(1, "string"),
            "entries": Field(2, "Entry", is_repeated=True),
            "hash": Field(3, "uint64"),
        },
        "Entry": {
            "timestamp": Field(1, "Timestamp"),
            "line": Field(2, "bytes"),
            "structured_metadata": Field(3, "LabelPair", is_repeated=True),
        },
        "Timestamp": {"seconds": Field(1, "int64"), "nanos": Field(2, "int32")},
        "LabelPair": {"name": Field(1, "string"), "value": Field(2, "string")},
    },
)["PushRequest"]
"""``logproto.PushRequest``."""


def json_lines(
    body: bytes, services: Sequence[str], default: str, added: Json, records: RecordMaker
) -> Iterator[Made]:
    """The records of a push in JSON.

    Args:
        body: The request.
        services: Labels that name the service; the first that a stream has does.
        default: The service of streams without them.
        added: Attributes of every record.
        records: Makes them.

    Raises:
        RemoteProtocolError: It is no push.
    """
    pushed = read_json(body)
    streams = pushed.get("streams") if isinstance(pushed, dict) else None
    if not isinstance(streams, list):
        raise RemoteProtocolError('couldn\'t parse push request: {"streams": [...]} is expected')
    records.notes["fields_unknown"] += len(pushed) - 1
    for number, stream in enumerate(streams):
        labels, values = _parts_of(stream, number)
        records.notes["fields_unknown"] += len(stream) - 2
        entries = (_entry(value, number) for value in values)
        yield from _lines(labels, entries, services, default, added, records)


def protobuf_lines(
    body: bytes, services: Sequence[str], default: str, added: Json, records: RecordMaker
) -> Iterator[Made]:
    """The records of a push in protobuf, decompressed; as `json_lines`.

    Raises:
        RemoteProtocolError: It is no push.
    """
    for stream in parse(PUSH, body).streams:
        labels = read_labels(stream.labels)
        if stream.hash:
            records.notes["stream_hashes_dropped"] += 1
        entries = (
            (
                one.timestamp.seconds * 1_000_000_000 + one.timestamp.nanos,
                one.line,
                {pair.name: pair.value for pair in one.structured_metadata},
            )
            for one in stream.entries
        )
        yield from _lines(labels, entries, services, default, added, records)


_LABEL: Final = re.compile(r'\s*([A-Za-z_][\w.]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.DOTALL)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})|(.))", re.DOTALL
)
_ESCAPED: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_LEVELS: Final = ("level", "severity", "detected_level", "lvl")
_UNICODE_MAX: Final = 0x10FFFF


def read_labels(text: str) -> dict[str, str]:
    """Labels as Prometheus writes them: ``{app="shop", env="prod"}``.

    Raises:
        RemoteProtocolError: They are not.
    """
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise RemoteProtocolError(f"error parsing labels {text[:100]!r}: no braces")
    inner, at, labels = inner[1:-1].strip(), 0, dict[str, str]()
    while at < len(inner):
        found = _LABEL.match(inner, at)
        if found is None:
            raise RemoteProtocolError(f"error parsing labels at {inner[at : at + 50]!r}")
        labels[found[1]] = _ESCAPE.sub(_unescape, found[2])
        at = found.end()
    return labels


def _unescape(found: re.Match[str]) -> str:
    *hexadecimal, octal, letter = found.groups()
    if letter is not None:
        return _ESCAPED.get(letter, letter)
    number = int(octal, 8) if octal else int(next(filter(None, hexadecimal)), 16)
    return chr(number) if number <= _UNICODE_MAX else "\ufffd"


def _parts_of(stream: Any, number: int) -> tuple[Json, list[Any]]:
    labels = stream.get("stream") if isinstance(stream, dict) else None
    values = stream.get("values") if isinstance(stream, dict) else None
    if not isinstance(labels, dict) or not isinstance(values, list):
        raise RemoteProtocolError(f"couldn't parse push request: stream {number} is none")
    return labels, values


def _entry(value: Any, number: int) -> Entry:
    if not isinstance(value, list) or not 2 <= len(value) <= 3:
        raise RemoteProtocolError(f"couldn't parse push request: a value of stream {number}")
    time, line, metadata = (*value, {})[:3]
    try:
        time_ns = int(time) if isinstance(time, (str, int)) and len(str(time)) < 24 else -1
    except ValueError:
        time_ns = -1
    if time_ns < 0 or not isinstance(line, str) or not isinstance(metadata, dict):
        message = f"couldn't parse push request: a time, line or metadata of stream {number}"
        raise RemoteProtocolError(message)
    return time_ns, line, metadata


def _lines(
    labels: Mapping[str, Any],
    entries: Iterator[Entry],
    services: Sequence[str],
    default: str,
    added: Json,
    records: RecordMaker,
) -> Iterator[Made]:
    """The records of one stream."""
    if not labels:
        raise RemoteProtocolError("error at least one label pair is required per stream")
    named = (str(labels[key]) for key in services if labels.get(key))
    resource = records.resource_of(next(named, default), str(labels.get("host", "")))
    for time_ns, line, metadata in entries:
        attributes = {**labels, **metadata, **added}
        level = next((str(attributes[key]) for key in _LEVELS if attributes.get(key)), "")
        is_time = 0 <= time_ns <= INT64_MAX
        if not is_time:
            records.notes["timestamps_unreadable"] += 1
        about = About(attributes, time_ns if is_time else None, level)
        yield records.text(line, resource, about)
