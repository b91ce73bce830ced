"""The fast path for OTLP log records: from protobuf straight to record lines.

Most log records have a text as body and scalars as attributes. Their lines are written from parts:
the resource is encoded once for all records, and each attribute once for all records that have it.
Of records with one shape (the same attributes, the same fields) the validator checks the first:
within its bounds, other values cannot change the verdict.

All other records (nested values, fields of the context, texts beyond a bound, ids of another
length, a scope of Penstock's own) go through `penstock.collector.decode.otlp.records`, one by one.
Both paths make the same line of a record that both can read.

The protobuf schema here is OTLP's with packed attributes: each attribute is its bytes. Programs
repeat the same attributes, so the bytes serve as keys of a cache, and reading them costs a tenth of
reading objects. Names, numbers and types are those of OTLP's fields.
"""

import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from penstock.collector.decode.otlp.messages import LOGS, as_json, parse_request
from penstock.collector.decode.otlp.records import (
    Note,
    map_element,
    says_unknown_level,
    without_place,
)
from penstock.collector.decode.severity import severity
from penstock.collector.decode.shapes import Check, ShapeValidator
from penstock.specs.formats.otlp import RENAMED, scope_attributes
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    INT64_MAX,
    KEY_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    SCOPE_CHARACTERS_MAX,
    STRING_CHARACTERS_MAX,
)
from penstock.specs.models.envelope import Context
from penstock.specs.models.log import DEFAULT_SEVERITY, severity_text
from penstock.specs.models.resource import fit_and_count
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

_PACKAGE: Final = "penstock.otlp.packed"
_FILE: Final = "penstock/otlp/packed.proto"


def unpack_records(body: bytes) -> list[list[Any]]:
    """The log records of each scope of each resource; what they lie in holds nothing else here.

    Args:
        body: A readable ``ExportLogsServiceRequest``.
    """
    request: Any = _REQUEST()
    request.ParseFromString(body)
    return [[scope.log_records for scope in one.scope_logs] for one in request.resource_logs]


def _message(file: FileDescriptorProto, of: Descriptor, *fields: str) -> None:
    """A message with some fields of another."""
    made = file.message_type.add(name=of.name)
    for name in fields:
        _field(made, of.fields_by_name[name])


def _field(made: DescriptorProto, of: FieldDescriptor) -> None:
    inner = of.message_type
    field = made.field.add(name=of.name, number=of.number, type=of.type)
    field.label = (
        FieldDescriptorProto.LABEL_REPEATED
        if of.is_repeated
        else FieldDescriptorProto.LABEL_OPTIONAL
    )
    if inner is not None and inner.name == "KeyValue":
        field.type = FieldDescriptorProto.TYPE_BYTES
    elif inner is not None:
        ours = inner.name in {"ResourceLogs", "ScopeLogs", "LogRecord"}
        field.type_name = f".{_PACKAGE}.{inner.name}" if ours else f".{inner.full_name}"
    elif of.enum_type is not None:
        field.type = FieldDescriptorProto.TYPE_INT32


def _made() -> type[Any]:
    file = FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
    file.dependency.append(common_pb2.DESCRIPTOR.name)
    _message(file, ExportLogsServiceRequest.DESCRIPTOR, "resource_logs")
    _message(file, ResourceLogs.DESCRIPTOR, "scope_logs")
    _message(file, ScopeLogs.DESCRIPTOR, "log_records")
    _message(file, LogRecord.DESCRIPTOR, *LogRecord.DESCRIPTOR.fields_by_name)
    pool = Default()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ExportLogsServiceRequest"))


_REQUEST: Final = _made()


Json = dict[str, Any]
Made = tuple[bytes | str, Accepted | None]
"""A line or what is none, and the validator's verdict where it is known."""

_OWN: Final = "penstock"
_FIELDS: Final = frozenset(
    {*RENAMED.values(), *(str(field.alias) for field in Context.model_fields.values())}
)
"""Attributes that are fields of a record."""
_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)
_TEXTS: Final = {number: severity_text(number) for number in range(1, 25)}
_OF_A_RECORD: Final = ("flag_bits_dropped", "levels_unknown", "texts_cut")
_SEVERITY_CHARACTERS_MAX: Final = 32
_TRACE_FLAGS_MAX: Final = 0xFF
_COMMON: Final = attrgetter(
    "time_unix_nano", "observed_time_unix_nano", "severity_number", "severity_text"
)
_RARE: Final = attrgetter("trace_id", "span_id", "flags", "event_name", "dropped_attributes_count")
AT_ONCE: Final = 50
"""Records that are made before they are handed on: each may have a resource of 8 KiB with it."""
_MEMOS_MAX: Final = 4096
_MEMO_BYTES_MAX: Final = 512
"""Longest attribute that is cached; the cache takes 8 MiB in all."""


def map_logs(
    body: bytes,
    default: Mapping[str, Any],
    now_ns: int,
    note: Note = lambda *_: None,
    *,
    check: Check = check_line,
) -> Iterator[list[Made]]:
    """The lines of an ``ExportLogsServiceRequest``; what `map_element` yields, with verdicts.

    Args:
        body: The request, encoded.
        default: The resource of records that come without one.
        now_ns: Arrival time.
        note: Told what was not understood or is lost, and how often.
        check: The validator, asked for the first record of each shape.

    Yields:
        Some of them at a time.

    Raises:
        RemoteProtocolError: It is no such request.
        RefusedRecordError: It holds what is no such element.
    """
    request: Any = parse_request(LOGS, body)
    for element, packed in zip(request.resource_logs, unpack_records(body), strict=True):
        resource = _resource(element, default)
        if resource is None:
            for made in map_element(as_json(element), default, now_ns, note):
                yield [(made, None)]
            continue
        _note_around(element, note)
        for scope, records in zip(element.scope_logs, packed, strict=True):
            about = _scope_members(scope)
            validator = ShapeValidator(check)
            plain = _Lines(scope.scope.name, about or [], resource, now_ns, note, validator)
            own = (
                about is None
                or scope.schema_url.startswith(_OWN)
                or len(scope.scope.name) > SCOPE_CHARACTERS_MAX
            )
            for first in range(0, len(records), AT_ONCE):
                part = records[first : first + AT_ONCE]
                found = [None] * len(part) if own else [*map(plain.make, part)]
                known = [one for one in found if one is not None]
                if len(known) == len(found):
                    yield known
                    continue
                for index, one in enumerate(found, first):
                    if one is not None:
                        yield [one]
                        continue
                    alone = _alone(element, scope, scope.log_records[index])
                    lines = map_element(alone, default, now_ns, _of_a_record(note))
                    yield [(line, None) for line in lines]


def _of_a_record(note: Note) -> Note:
    """Counts what a record has alone: what the resource has too much of is counted once for all."""
    return lambda what, count: note(what, count) if what in _OF_A_RECORD else None


class _Lines:
    """Makes the lines of one scope's plain records, with the verdict on each shape."""

    def __init__(
        self,
        scope: str,
        about: list[tuple[str, str]],
        resource: str,
        now_ns: int,
        note: Note,
        validator: ShapeValidator,
    ) -> None:
        self._about = about
        own = f',"scope":{_encoded(scope)}' if scope else ""
        self._end = f'{own},"resource":{resource}}}'
        self._now_ns, self._note, self._validator = now_ns, note, validator

    def make(self, record: Any) -> Made | None:
        """A record's line and verdict; None when it is not plain."""
        pairs: list[Any] = [*self._about, *map(_MEMBERS.__getitem__, record.attributes)]
        rare, body = _rare(record), _body(record.body)
        if None in pairs or len(pairs) > ATTRIBUTES_MAX or rare is None or body is None:
            return None
        time_ns, observed_ns, number, text = _COMMON(record)
        observed_ns = observed_ns or self._now_ns
        time_ns = time_ns or observed_ns
        if time_ns > INT64_MAX or observed_ns > INT64_MAX or len(text) > _SEVERITY_CHARACTERS_MAX:
            return None
        if number not in _TEXTS and says_unknown_level(number, text):
            self._note("levels_unknown", 1)
        number, level = _severity(number, text)
        which, members = rare
        attributes = dict(pairs)
        line = (
            f'{{"schema":"log/1.0","kind":"log","time_unix_nano":{time_ns},'
            f'"observed_time_unix_nano":{observed_ns},{level},"body":{body},'
            f'"attributes":{{{",".join(attributes.values())}}}{members}{self._end}'
        ).encode()
        return line, self._validator.validate(line, (which, *attributes), time_ns)


def _scope_members(scope: Any) -> list[tuple[str, str]] | None:
    """Return a scope's other fields as attributes; None leaves them to the slow path."""
    if any(_scalar(pair) is None for pair in scope.scope.attributes):
        return None
    own = scope_attributes({"scope": as_json(scope.scope), "schemaUrl": scope.schema_url})
    fits = all(0 < len(key) <= KEY_CHARACTERS_MAX for key in own)
    if not fits or any(len(str(value)) > STRING_CHARACTERS_MAX for value in own.values()):
        return None
    return [(key, f"{_encoded(key)}:{_encoded(value)}") for key, value in own.items()]


def _resource(element: Any, default: Mapping[str, Any]) -> str | None:
    """A plain resource, encoded; None when only the other way can read it, or tell what is lost."""
    message = element.resource
    found: Json = {}
    if element.schema_url:
        return None
    if len(message.attributes) > ATTRIBUTES_MAX:
        return None
    for pair in message.attributes:
        scalar = _scalar(pair)
        if scalar is None:
            return None
        found[pair.key] = scalar
    try:
        resource, left_out = fit_and_count(found or default)
        return None if left_out else _encoded(resource)
    except (TypeError, ValueError):
        return None


def _attribute(packed: bytes) -> tuple[str, str] | None:
    """Return an attribute's key and its JSON member; None when it has no place unchanged."""
    pair = KeyValue.FromString(packed)
    key, scalar = pair.key, _scalar(pair)
    if scalar is None or key in _FIELDS:
        return None
    return key, f"{_encoded(key)}:{_encoded(scalar)}"


class Members(dict[bytes, tuple[str, str] | None]):
    """Attributes, encoded, as their key and as a member; None: it has no place as it is.

    The last few thousand short ones are cached.
    """

    def __init__(self, count_max: int = _MEMOS_MAX) -> None:
        super().__init__()
        self._count_max = count_max

    def __missing__(self, packed: bytes) -> tuple[str, str] | None:
        found = _attribute(packed)
        if len(packed) <= _MEMO_BYTES_MAX:
            if len(self) >= self._count_max:
                self.clear()
            self[packed] = found
        return found


_MEMBERS: Final = Members()


def _scalar(pair: Any) -> Any:
    """An attribute's value as it stands; None when it, or its key, has no place there as it is."""
    value, scalar = pair.value, None
    kind = value.WhichOneof("value")
    if kind == "string_value":
        scalar = value.string_value
        if len(scalar) > STRING_CHARACTERS_MAX:
            return None
    elif kind == "int_value":
        scalar = value.int_value
    elif kind == "bool_value":
        scalar = value.bool_value
    elif kind == "double_value" and math.isfinite(value.double_value):
        scalar = value.double_value
    fits = 0 < len(pair.key) <= KEY_CHARACTERS_MAX and not pair.key.startswith(_OWN)
    return scalar if fits else None


def _body(value: Any) -> str | None:
    """Text, encoded; None when it is something else, or too long."""
    text = value.string_value
    if not text and value.WhichOneof("value") not in (None, "string_value"):
        return None
    return _encoded(text) if len(text) <= STRING_CHARACTERS_MAX else None


def _rare(record: Any) -> tuple[int, str] | None:
    """Return a record's rare members, absent where they are zero; None where one breaks a rule."""
    trace_id, span_id, flags, name, dropped = _RARE(record)
    which, members = 0, ""
    if trace_id and trace_id != _NO_TRACE:
        if len(trace_id) != len(_NO_TRACE) or len(span_id) not in (0, len(_NO_SPAN)):
            return None
        which, members = 1, f',"trace_id":"{trace_id.hex()}"'
        if span_id and span_id != _NO_SPAN:
            which, members = 2, f'{members},"span_id":"{span_id.hex()}"'
    if flags:
        if flags > _TRACE_FLAGS_MAX:
            return None
        which, members = which | 4, f'{members},"trace_flags":{flags}'
    if name:
        if len(name) > NAME_CHARACTERS_MAX:
            return None
        which, members = which | 8, f'{members},"event_name":{_encoded(name)}'
    if dropped:
        which, members = which | 16, f'{members},"dropped_attributes_count":{dropped}'
    return which, members


def _severity(number: int, text: str) -> tuple[int, str]:
    """The number, and it and the text as members."""
    if not text and (known := _LEVELS.get(number)):
        return known
    if number not in _TEXTS:
        named = severity(text or None)
        number = named[0] if named else DEFAULT_SEVERITY
    return _level(number, text or _TEXTS[number])


def _level(number: int, text: str) -> tuple[int, str]:
    return number, f'"severity_number":{number},"severity_text":{_encoded(text)}'


def _encoded(value: Any) -> str:
    return orjson.dumps(value).decode()


_LEVELS: Final = {number: _level(number, text) for number, text in _TEXTS.items()}


def _note_around(element: Any, note: Note) -> None:
    """Count what an element says of its resource and scopes that no record has."""
    resource = element.resource
    counts = [one.scope.dropped_attributes_count for one in element.scope_logs]
    if not (resource.dropped_attributes_count or resource.entity_refs or any(counts)):
        return
    around = {
        "resource": {
            "droppedAttributesCount": resource.dropped_attributes_count,
            "entityRefs": [*resource.entity_refs],
        },
        "scopeLogs": [{"scope": {"droppedAttributesCount": count}} for count in counts],
    }
    for what, count in without_place(around).items():
        note(what, count)


def _alone(element: Any, scope: Any, record: Any) -> Json:
    """One record as an element that holds no other."""
    parts = {"schemaUrl": scope.schema_url, "scope": as_json(scope.scope)}
    return {
        "resource": as_json(element.resource),
        "scopeLogs": [{**parts, "logRecords": [as_json(record)]}],
    }
