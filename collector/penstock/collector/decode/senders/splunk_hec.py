"""Decoder of Splunk's HTTP Event Collector: events and metrics.

From Splunk's "Format events for HTTP Event Collector" and "Get metrics in from other sources": a
body is JSON objects one after the other, with or without space between them; each has an `event`
and may have `time`, `host`, `source`, `sourcetype`, `index` and flat `fields`. An event ``metric``
has its measurements in `fields`, as ``metric_name:NAME``, or as `metric_name` with `_value`.

Docker's driver `splunk` sends ``{"line": …, "source": "stdout", "tag": …, "attrs": …}`` as event:
the line becomes the record, and the rest its attributes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from penstock.collector.decode.senders.record_maker import About, RecordMaker, text_or_empty
from penstock.collector.decode.shapes import Made
from penstock.collector.errors import RemoteProtocolError

Json = dict[str, Any]


class HecCode(IntEnum):
    """Codes of answers, as Splunk's "Troubleshoot HTTP Event Collector" lists them."""

    SUCCESS = 0
    TOKEN_REQUIRED = 2
    INVALID_AUTHORIZATION = 3
    INVALID_TOKEN = 4
    NO_DATA = 5
    INVALID_DATA_FORMAT = 6
    SERVER_BUSY = 9
    CHANNEL_MISSING = 10
    CHANNEL_INVALID = 11
    EVENT_REQUIRED = 12
    EVENT_BLANK = 13
    ACK_DISABLED = 14
    INDEXED_FIELDS = 15
    QUERY_STRING_DISABLED = 16
    HEALTHY = 17
    QUEUES_FULL = 18
    TOO_LARGE = 27


class HecFormatError(RemoteProtocolError):
    """A request is not what it should be.

    Attributes:
        code: Code in the answer to the sender.
        event: The first event that is wrong, from 0; None where none is.
    """

    def __init__(self, code: HecCode, message: str, event: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.event = event


@dataclass(frozen=True, slots=True)
class HecSettings:
    """Settings of every event of a request.

    Attributes:
        service: The service, or `from_source`, `from_sourcetype` or `from_index`.
        defaults: Values of missing keys: `host`, `source`, `sourcetype`, `index`.
    """

    service: str
    defaults: Mapping[str, str] = field(default_factory=dict)


def event_lines(body: bytes, settings: HecSettings, records: RecordMaker) -> Iterator[Made]:
    """The records of a request to ``/services/collector/event``.

    Raises:
        HecFormatError: It is none, at the event that is wrong.
    """
    number = -1
    for number, event in enumerate(_objects(body)):
        unknown = event.keys() - _KEYS
        if unknown:
            records.notes["hec_keys_unknown"] += len(unknown)
        value = _event_of(event, number)
        fields = event.get("fields")
        if fields is not None and not _are_flat(fields):
            raise HecFormatError(HecCode.INDEXED_FIELDS, "`fields` must be flat", number)
        about: Json = {key: event[key] for key in _ABOUT if key in event}
        about = {**settings.defaults, **about}
        if value == "metric" and fields:
            yield from _points(fields, about, event.get("time"), settings, records, number)
        else:
            yield _record(value, about, event.get("time"), fields or {}, settings, records)
    if number < 0:
        raise HecFormatError(HecCode.NO_DATA, "the body is empty")


def raw_lines(
    body: bytes, settings: HecSettings, records: RecordMaker, time: str | None
) -> Iterator[Made]:
    """The records of a request to ``/services/collector/raw``: each line of text is one.

    Raises:
        HecFormatError: There is none.
    """
    resource, attributes = _about(settings.defaults, settings, records)
    about, is_empty = About(attributes, records.time_of(time)), True
    for whole in body.split(b"\n"):
        line = whole.removesuffix(b"\r")
        if line:
            is_empty = False
            yield records.text(line, resource, about)
    if is_empty:
        raise HecFormatError(HecCode.NO_DATA, "the body is empty")


_ABOUT: Final = ("host", "source", "sourcetype", "index")
_KEYS: Final = {*_ABOUT, "event", "time", "fields"}
_DOCKER: Final = {"line", "source", "tag", "attrs"}
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_MEASURED: Final = "metric_name:"
_decode: Final = json.JSONDecoder().raw_decode


def _objects(body: bytes) -> Iterator[Json]:
    """JSON objects that stand one after the other."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise HecFormatError(HecCode.INVALID_DATA_FORMAT, str(error)) from None
    number, at = 0, _end_of_space(text, 0)
    while at < len(text):
        try:
            found, at = _decode(text, at)
        except (ValueError, RecursionError) as error:
            raise HecFormatError(HecCode.INVALID_DATA_FORMAT, str(error), number) from None
        if not isinstance(found, dict):
            raise HecFormatError(HecCode.INVALID_DATA_FORMAT, "an event is an object", number)
        yield found
        number, at = number + 1, _end_of_space(text, at)


def _end_of_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def _event_of(event: Json, number: int) -> Any:
    if "event" not in event:
        raise HecFormatError(HecCode.EVENT_REQUIRED, "no `event`", number)
    value = event["event"]
    if value is None or value in ("", {}):
        raise HecFormatError(HecCode.EVENT_BLANK, "`event` is blank", number)
    return value


def _are_flat(fields: Any) -> bool:
    return isinstance(fields, dict) and not any(isinstance(one, dict) for one in fields.values())


def _about(
    about: Mapping[str, Any], settings: HecSettings, records: RecordMaker
) -> tuple[Mapping[str, Any], Json]:
    """The resource and the attributes of an event."""
    service = settings.service
    if service.startswith("from_"):
        service = text_or_empty(about.get(service.removeprefix("from_"))) or "splunk_hec"
    names = ("source", "sourcetype", "index")
    attributes = {f"com.splunk.{name}": about[name] for name in names if about.get(name)}
    return records.resource_of(service, text_or_empty(about.get("host"))), attributes


def _record(
    value: Any,
    about: Mapping[str, Any],
    time: Any,
    fields: Json,
    settings: HecSettings,
    records: RecordMaker,
) -> Made:
    resource, attributes = _about(about, settings, records)
    attributes |= fields
    if isinstance(value, dict) and "line" in value and value.keys() <= _DOCKER:
        attrs = value.get("attrs")
        attributes |= attrs if isinstance(attrs, dict) else {}
        names = {"source": "log.iostream", "tag": "docker.tag"}
        attributes |= {to: value[key] for key, to in names.items() if key in value}
        value = value["line"]
    return records.value(value, resource, About(attributes, records.time_of(time)))


def _points(
    fields: Json,
    about: Mapping[str, Any],
    time: Any,
    settings: HecSettings,
    records: RecordMaker,
    number: int,
) -> Iterator[Made]:
    """The points of an event ``metric``, whose other fields are their dimensions."""
    resource, attributes = _about(about, settings, records)
    time_ns = records.time_of(time)
    measured: Json = {}
    for key, value in fields.items():
        if key.startswith(_MEASURED):
            measured[key.removeprefix(_MEASURED)] = value
        elif key not in ("metric_name", "_value"):
            attributes[key] = value
    if "metric_name" in fields:
        measured[text_or_empty(fields["metric_name"])] = fields.get("_value")
    if not measured:
        raise HecFormatError(HecCode.INDEXED_FIELDS, "a metric without a measurement", number)
    for name, value in measured.items():
        figure = _number(value)
        if figure is None or not name:
            message = f"the measurement {name!r} is no number"
            raise HecFormatError(HecCode.INDEXED_FIELDS, message, number)
        typed = {"metric_type": "gauge", "value": figure}
        yield records.point(name, resource, attributes, typed, time_ns=time_ns)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
