"""The records of one request, with what all of them share."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import orjson

from penstock.collector.decode.attributes import clean_text, flatten
from penstock.collector.decode.line_rules import NO_RULES
from penstock.collector.decode.lines import (
    BYTE_ORDER_MARK,
    log_record,
    structured_fields,
    text_of,
)
from penstock.collector.decode.loggers import LEVELS, Trace, roles_of, take_trace
from penstock.collector.decode.metrics import metric_line
from penstock.collector.decode.severity import INFO, severity
from penstock.collector.decode.shapes import Made, ShapedEvents, ShapeValidator, log_fields
from penstock.collector.decode.timestamps import epoch_text_ns, epoch_time_ns
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import LINE_BYTES_MAX, SERVICE_CHARACTERS_MAX
from penstock.specs.limits import ATTRIBUTES_MAX, STRING_CHARACTERS_MAX

Json = dict[str, Any]
_CACHED_MAX: Final = 1000
"""Resources that are cached; a request of more services or hosts makes them again."""
_SHAPED_MAX: Final = 64
"""Origins of events whose shapes are cached."""
_ADDED_MAX: Final = ATTRIBUTES_MAX // 2
"""Attributes that stand beside an event; the event itself has room for as many."""
_LINE_ATTRIBUTES_MAX: Final = ATTRIBUTES_MAX - 2
"""Attributes that stand beside a line; two may be added that mark it."""


@dataclass(frozen=True, slots=True)
class About:
    """The parts of an event that a protocol sends beside it.

    Attributes:
        attributes: Attributes that take precedence over the event's own fields.
        time_ns: Time of the event; None: the event's own, or the time of its arrival.
        level: Name of its level; empty: the event's own.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict)
    time_ns: int | None = None
    level: str = ""


class RecordMaker:
    """Makes the records of one request.

    Args:
        resource: The collector's defaults.
        now_ns: Arrival time of the request.

    Attributes:
        notes: Count of what was not understood or has no place, by reason; the records are kept.
    """

    def __init__(self, resource: Mapping[str, Any], now_ns: int) -> None:
        self.now_ns = now_ns
        self.notes: Counter[str] = Counter()
        self._resource = resource
        self._resources: dict[tuple[str, str], dict[str, Any]] = {}
        self._shaped: dict[tuple[Any, ...], ShapedEvents | None] = {}
        self._validators: dict[tuple[str, str], ShapeValidator] = {}

    def resource_of(self, service: str, host: str = "") -> Mapping[str, Any]:
        """The resource of a service's records, on the host that sent them if one is named."""
        key = service, host
        found = self._resources.get(key)
        if found is None:
            if len(self._resources) >= _CACHED_MAX:
                self._resources.clear()
            found = {**self._resource, "service.name": bounded(service) or "unknown_service"}
            if host:
                found["host.name"] = bounded(host)
            self._resources[key] = found
        return found

    def event(
        self,
        fields: Json,
        resource: Mapping[str, Any],
        about: About,
        *,
        is_line: bool = False,
    ) -> Made:
        """The log record of a structured event; `fields` is used up.

        Args:
            fields: The event's keys and values.
            resource: Resource that emitted it.
            about: Facts that the protocol sends beside it. A level in the event takes precedence.
            is_line: A time in the event is better, too, as its sender only saw the line.
        """
        if about.level and LEVELS.isdisjoint(fields):
            fields["level"] = about.level
        shaped = self._shaped_events(resource, about, timed=not is_line)
        made = None if shaped is None else shaped.make(fields, time_ns=about.time_ns)
        if made is not None:
            return made
        attributes, trace = self._beside(about)
        record = log_record(
            fields,
            attributes,
            resource,
            self.now_ns,
            time_ns=None if is_line else about.time_ns,
            written_ns=about.time_ns,
            notes=self.notes,
        )
        if trace is not None and "trace_id" not in record:
            record |= trace.fields()
        return orjson.dumps(record), None

    def text(self, text: str | bytes, resource: Mapping[str, Any], about: About) -> Made:
        """The log record of a line, as of the lines of other sources; cut above their length."""
        line = clean_text(text).encode() if isinstance(text, str) else text
        is_cut = len(line) > LINE_BYTES_MAX
        fields, is_repaired = (None, False) if is_cut else structured_fields(line, NO_RULES)
        if is_repaired:
            self.notes["lines_repaired"] += 1
        if fields is not None:
            return self.event(fields, resource, about, is_line=True)
        attributes, trace = self._beside(about, _LINE_ATTRIBUTES_MAX)
        if is_cut:
            self.notes["records_truncated"] += 1
            line = line[:LINE_BYTES_MAX].decode("utf-8", "ignore").encode()
            attributes["log.record.truncated"] = True
        level = severity(about.level)
        if about.level and level is None:
            self.notes["levels_unknown"] += 1
        time_ns = self.now_ns if about.time_ns is None else about.time_ns
        record = log_fields(
            level=level or INFO,
            time_ns=time_ns,
            now_ns=self.now_ns,
            body=text_of(line.removeprefix(BYTE_ORDER_MARK), attributes),
            trace=trace,
            resource=resource,
            attributes=attributes,
        )
        made = orjson.dumps(record)
        if any(value.__class__ is list for value in attributes.values()):
            return made, None  # its items are the validator's to judge
        shape = (trace is not None, trace is not None and trace.span_id is not None, *attributes)
        return made, self._validator_of(resource).validate(made, shape, time_ns)

    def value(self, value: Any, resource: Mapping[str, Any], about: About) -> Made:
        """The log record of any JSON value: an event, a line, or the JSON text of another."""
        if isinstance(value, dict):
            return self.event(dict(value), resource, about)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return self.text(text, resource, about)

    def point(
        self,
        name: str,
        resource: Mapping[str, Any],
        attributes: Mapping[str, Any],
        typed: Mapping[str, Any],
        *,
        time_ns: int | None,
        unit: str = "",
    ) -> Made:
        """The record of a metric's point; see `metric_line`."""
        line = metric_line(
            clean_text(name),
            clean_text(unit),
            attributes,
            typed,
            time_ns=self.now_ns if time_ns is None else time_ns,
            observed_ns=self.now_ns,
            resource=resource,
        )
        return line, None

    def time_of(self, value: Any) -> int | None:
        """A number since 1970, perhaps in text, by its magnitude; None is counted unless absent."""
        if value is None:
            return None
        found = None
        if isinstance(value, str):
            found = epoch_text_ns(value.strip())
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found = epoch_time_ns(value)
        if found is None:
            self.notes["timestamps_unreadable"] += 1
        return found

    def _shaped_events(
        self, resource: Mapping[str, Any], about: About, *, timed: bool
    ) -> ShapedEvents | None:
        """Return the decoder of one origin's plain events; None when it is not plain itself.

        Only the first origins of a request are looked at: a request of many has few events of each.
        """
        given = about.attributes
        if any(value.__class__ is not str for value in given.values()):
            return None
        timed = timed and about.time_ns is not None
        key = (*_origin_of(resource), timed, *given.items())
        if key in self._shaped:
            return self._shaped[key]
        if len(self._shaped) >= _SHAPED_MAX:
            return None
        flat, left_out = flatten(given, count_max=_ADDED_MAX)
        made = None
        if not left_out and not _may_name_a_trace(flat):
            made = ShapedEvents(resource, flat, self.now_ns, timed=timed)
        self._shaped[key] = made
        return made

    def _validator_of(self, resource: Mapping[str, Any]) -> ShapeValidator:
        key = _origin_of(resource)
        if len(self._validators) >= _CACHED_MAX:
            self._validators.clear()
        return self._validators.setdefault(key, ShapeValidator())

    def _beside(
        self, about: About, count_max: int = _ADDED_MAX
    ) -> tuple[dict[str, Any], Trace | None]:
        """Attributes beside an event, and the trace that some of them name."""
        flat, left_out = flatten(about.attributes, count_max=count_max)
        if left_out:
            self.notes["attributes_dropped"] += left_out
        if not _may_name_a_trace(flat):
            return flat, None
        return flat, take_trace(flat, roles_of(flat))


def _origin_of(resource: Mapping[str, Any]) -> tuple[str, str]:
    return resource["service.name"], resource.get("host.name", "")


def _may_name_a_trace(keys: Iterable[str]) -> bool:
    return any("race" in key or key == "@tr" for key in keys)


def bounded(text: str) -> str:
    """A name as a resource may have it: encodable, and no longer than allowed."""
    return clean_text(text)[:SERVICE_CHARACTERS_MAX]


def text_or_empty(value: Any) -> str:
    """A value that should be text: as it is, a number as its digits, anything else as none."""
    if isinstance(value, str):
        return value[:STRING_CHARACTERS_MAX]
    return str(value) if isinstance(value, (int, float)) else ""


def read_json(body: bytes) -> Any:
    """The JSON value that a body is.

    Raises:
        RemoteProtocolError: It is none.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None


def query_of(query: str) -> dict[str, str]:
    """The parameters of a URL's query; of one that is repeated the last.

    Raises:
        RemoteProtocolError: There are more than anybody sends.
    """
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX))
    except ValueError as error:
        raise RemoteProtocolError(f"the query: {error}") from None


_PARAMETERS_MAX: Final = 64
