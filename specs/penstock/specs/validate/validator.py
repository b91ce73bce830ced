"""The collector's edge: is this line a record that its spec allows?

A validator, not a parser: an accepted line goes on as the bytes that came, so fields this version
does not know survive it. What is refused is refused with a short reason that never holds the
record's values. Most lines are right and leave by the fast path (`penstock.specs.validate.fast`).
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from penstock.specs.errors import RefusedRecordError, RefusedSpecError
from penstock.specs.limits import DEPTH_MAX, RECORD_BYTES_MAX
from penstock.specs.models.codec import explain, lift
from penstock.specs.models.envelope import AT_EDGE, Record, resolve
from penstock.specs.models.kinds import BASE_MODELS, WIRE_REQUIRED, discover
from penstock.specs.validate.fast import accept, accept_all, key_ends, read_attached
from penstock.specs.validate.verdict import Accepted, Rejected
from penstock.specs.versions.upcast import upcast_record

_RESOURCE: Final = b'"resource"'
_HIDING: Final = (b'"observed_time_unix_nano"', b"\\u")
_ATTACHED: Final = (_RESOURCE, *_HIDING)
"""Without these a line has nothing that is attached to others, not even under an escaped name."""
_BLANKS: Final = b" \t\r\n"
"""JSON's; to `bytes.strip` others are blanks, too."""
_BLANK_ENDS: Final = (b" }", b"\t}", b"\r}")
"""`attach` takes the blank away."""
_SPACED_COLON: Final = re.compile(rb'"[ \t\r\n]+:')


def check_line(line: bytes) -> Accepted | Rejected:
    """Validate one complete line, resource included, without its newline.

    Reasons: ``too_large``, ``not_json``, ``not_an_object``, ``too_deep``, ``duplicate_key``,
    ``bad_kind``, ``bad_schema``, ``kind_mismatch``, ``unknown_major``, ``missing_field``,
    ``invalid``.
    """
    if len(line) <= RECORD_BYTES_MAX and (accepted := accept(line)) is not None:
        return accepted
    return check_slowly(line)


def check_together(lines: Sequence[bytes]) -> list[Accepted] | None:
    """The verdicts on lines of one spec, if all of them are records; else each is to be checked.

    It never says of a line what `check_line` does not, and takes less time.
    """
    if not lines or max(map(len, lines)) > RECORD_BYTES_MAX:
        return None
    return accept_all(lines)


def check_slowly(line: bytes) -> Accepted | Rejected:
    """Validate by pydantic alone, which has the last word and gives the reason."""
    try:
        return _check_fields(_parse(line))
    except RefusedRecordError as error:
        return Rejected(error.reason, error.detail)


def attach(line: bytes, resource_json: bytes, observed_ns: int | None = None) -> bytes:
    """Give a line the resource that was hoisted into its batch's header, and the time it arrived.

    Fields that the line has already are left alone. The result is the line's own bytes with the new
    fields before the closing brace; a line that is not an object comes back as it is, for the
    validator to refuse.

    Args:
        line: One record without its newline.
        resource_json: The header's resource, as JSON.
        observed_ns: Nanoseconds since 1970; None leaves the time out.
    """
    body = line.strip(_BLANKS)
    if not body.startswith(b"{") or not body.endswith(b"}"):
        return line
    added = []
    has_resource, has_observed = _attached(body)
    if not has_resource:
        added.append(b'"resource":' + resource_json)
    if observed_ns is not None and not has_observed:
        added.append(b'"observed_time_unix_nano":%d' % observed_ns)
    if not added:
        return line
    head = body[:-1].rstrip(_BLANKS)
    comma = b"" if head == b"{" else b","
    return head + comma + b",".join(added) + b"}"


def attach_and_check(
    lines: Sequence[bytes], resource_json: bytes, observed_ns: int
) -> tuple[Sequence[bytes], list[Accepted] | None]:
    """`attach`, then `check_together`, for lines that came together.

    Most have neither field, or all have their own resource: the validator accepts none that
    has it in another place only, so where it accepts them, nothing else was to be attached.
    """
    text = b"\n".join(lines)
    if (
        not any(mark in text for mark in _HIDING)
        and all(map(bytes.startswith, lines, repeat(b'{"')))
        and all(map(bytes.endswith, lines, repeat(b"}")))
        and not any(end + b"\n" in text for end in _BLANK_ENDS)
        and not text.endswith(_BLANK_ENDS)
    ):
        own = _RESOURCE in text
        resource = b"" if own else b',"resource":%b' % resource_json
        added = b'%b,"observed_time_unix_nano":%d}' % (resource, observed_ns)
        whole = [line[:-1] + added for line in lines]
        verdicts = check_together(whole)
        if verdicts is not None or not own:
            return whole, verdicts
    attached = [attach(line, resource_json, observed_ns) for line in lines]
    return attached, check_together(attached)


def _parse(line: bytes) -> dict[str, Any]:
    """The line's object, within all bounds and without duplicate keys.

    Raises:
        RefusedRecordError: It is not such an object.
    """
    if len(line) > RECORD_BYTES_MAX:
        raise RefusedRecordError("too_large")
    try:
        fields = from_json(line, allow_inf_nan=False)
        keys = _count_keys(fields, DEPTH_MAX)
    except (ValueError, RecursionError):
        raise RefusedRecordError("not_json") from None
    if not isinstance(fields, dict):
        raise RefusedRecordError("not_an_object")
    if keys < 0:
        raise RefusedRecordError("too_deep")
    if (key_ends(line) != keys or _SPACED_COLON.search(line)) and _has_duplicate_key(line):
        raise RefusedRecordError("duplicate_key")
    return fields


def _check_fields(fields: dict[str, Any]) -> Accepted:
    """Validate a parsed line.

    Raises:
        RefusedRecordError: It breaks its spec.
    """
    kind, schema = fields.get("kind"), fields.get("schema")
    model, exact = _choose(kind, schema)
    if missing := [key for key in WIRE_REQUIRED[str(kind)] if fields.get(key) is None]:
        raise RefusedRecordError("missing_field", ", ".join(sorted(missing)))
    unknown_fields = _validate_older(fields) if model is None else validate_fields(model, fields)
    return Accepted(
        kind=str(kind),
        schema=str(schema),
        service=fields["resource"]["service.name"],
        time_unix_nano=fields["time_unix_nano"],
        unknown_fields=unknown_fields,
        exact=exact,
        names=tuple(fields.get("attributes") or ()),
    )


def _choose(kind: Any, schema: Any) -> tuple[type[Record] | None, bool]:
    """The record's model, and whether it is that of its very spec; None: of another major."""
    discover()
    if not isinstance(kind, str) or kind not in BASE_MODELS:
        raise RefusedRecordError("bad_kind")
    if not isinstance(schema, str):
        raise RefusedRecordError("bad_schema")
    try:
        resolution = resolve(schema, kind)
    except RefusedSpecError:
        raise RefusedRecordError("bad_schema") from None
    if resolution.model is not None and resolution.model.model_fields["kind"].default != kind:
        raise RefusedRecordError("kind_mismatch")
    return resolution.model, resolution.exact


def _validate_older(fields: dict[str, Any]) -> int:
    """Validate a record of an older major version as what its upcasters make of it."""
    try:
        record = upcast_record(fields)
    except RefusedSpecError:
        raise RefusedRecordError("unknown_major") from None
    model, _ = _choose(record.get("kind"), record.get("schema"))
    if model is None:
        raise RefusedRecordError("unknown_major")
    return validate_fields(model, record)


def validate_fields(model: type[Record], fields: dict[str, Any]) -> int:
    """Apply a model to a record's JSON object.

    Returns:
        The number of unknown fields, which are tolerated.

    Raises:
        RefusedRecordError: It breaks a rule.
    """
    lifted = lift(model, fields)
    unknown: list[tuple[int | str, ...]] = []
    try:
        _apply(model, lifted)
    except ValidationError as error:
        broken = error.errors(include_input=False, include_url=False, include_context=False)
        if any(item["type"] != "extra_forbidden" for item in broken):
            raise RefusedRecordError("invalid", explain(error)) from None
        unknown = [item["loc"] for item in broken]
    if unknown:
        for path in unknown:
            lifted = _without(lifted, path)
        try:
            # The rules between fields are applied only when each field by itself is right.
            _apply(model, lifted)
        except ValidationError as error:
            raise RefusedRecordError("invalid", explain(error)) from None
    return len(unknown)


def _apply(model: type[Record], fields: dict[str, Any]) -> None:
    """Apply the model; on the wire a field has one name, not also that of its attribute here.

    Raises:
        ValidationError: A field breaks its rule.
    """
    _adapter(model).validate_python(fields, by_alias=True, by_name=False, context=AT_EDGE)


@lru_cache(maxsize=1024)
def _adapter(model: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(model)


def _without(value: Any, path: tuple[int | str, ...]) -> Any:
    """A copy of nested dicts and lists without the member at `path`."""
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = _without(copy[path[0]], path[1:])
    return copy


def _count_keys(value: Any, depth_left: int) -> int:
    """Count the keys of all objects in `value`; -1 when it nests too deep.

    Every key stands in the text as ``":`` (blanks before the colon are looked for apart), and such
    text inside strings can only add to the count. So if the text has as many as the parsed value
    has keys, no key was there twice, and the slow search is left out.
    """
    if depth_left == 0:
        return -1
    members: Any
    if value.__class__ is dict:
        count, members = len(value), value.values()
    elif value.__class__ is list:
        count, members = 0, value
    else:
        return 0
    for member in members:
        if member.__class__ is dict or member.__class__ is list:
            inner = _count_keys(member, depth_left - 1)
            if inner < 0:
                return -1
            count += inner
    return count


class _DuplicateKeyError(Exception):
    """Ends the search at the first duplicate."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _DuplicateKeyError


def _has_duplicate_key(line: bytes) -> bool:
    try:
        json.loads(line, object_pairs_hook=_refuse_duplicates)
    except _DuplicateKeyError:
        return True
    return False


def _attached(line: bytes) -> tuple[bool, bool]:
    """Return whether the object has a resource and a time of arrival at its top level."""
    if any(mark in line for mark in _ATTACHED):
        try:
            return read_attached(line)
        except (ValueError, RecursionError):
            return False, False
    return False, False
