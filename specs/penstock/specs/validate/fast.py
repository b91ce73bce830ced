"""The validator's fast path: most lines are right, and need no more than to be found right.

For each spec a decoder is generated from its pydantic model. It may only *accept*: what it does not
accept is validated by pydantic, which also says why. So the verdict is pydantic's on every line, as
long as nothing is accepted here that pydantic refuses; the types see to that
(`penstock.specs.validate.decoder`), and a differential fuzz.

Duplicate keys and fields that the spec does not have are not looked for. Each key has a colon, so
if the text has as many colons as the decoded record has keys, there are none. Colons in strings add
to the count; then ``":`` is counted, which stands in few strings. What does not add up is left to
pydantic.

Without msgspec (extra ``collector``) every line takes the slow path.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any, Final

from pydantic_core import from_json

from penstock.specs.errors import RefusedSpecError
from penstock.specs.models.envelope import Record, on_register, resolve
from penstock.specs.models.kinds import discover
from penstock.specs.validate.verdict import Accepted

try:
    import msgspec

    from penstock.specs.validate.decoder import (
        Decoder,
        UngeneratableError,
        generate,
        resource_types,
    )
except ImportError:  # the base install has pydantic only
    AVAILABLE = False
else:
    AVAILABLE = True

_MEMOS_MAX: Final = 1024
_MEMO_BYTES_MAX: Final = 4096
"""Bound of the caches of lines, beginnings and resources: 4 MiB each."""
HEAD_BYTES: Final = 24
"""Bytes at the beginning of a line by which its validator is found."""
_LOGGER: Final = logging.getLogger("penstock.specs")


LineValidator = Callable[[bytes], Accepted | None]
BatchValidator = Callable[[Sequence[bytes]], list[Accepted] | None]


def accept(line: bytes) -> Accepted | None:
    """The verdict on a line that is right beyond doubt; None when pydantic must validate it."""
    known = _heads.get(line[:HEAD_BYTES])
    if known is not None and line.startswith(known[0]):
        return known[1](line)
    end = line.find(b",", line.find(b",") + 1)
    if not 0 < end <= _MEMO_BYTES_MAX:
        return None
    validate, validate_all = _validators_of(line[:end])
    if len(_heads) >= _MEMOS_MAX:
        _heads.clear()
    _heads[line[:HEAD_BYTES]] = (line[: end + 1], validate, validate_all)
    return validate(line)


def accept_all(lines: Sequence[bytes]) -> list[Accepted] | None:
    """The verdicts on lines of one spec, all of them right beyond doubt.

    What `accept` says of each, for two thirds of its time.

    Returns:
        None when one of them is not, or they are of several specs: each is to be validated by
        itself.
    """
    if not lines or accept(lines[0]) is None:
        return None
    head, _, validate_all = _heads[lines[0][:HEAD_BYTES]]
    return validate_all(lines) if all(map(bytes.startswith, lines, repeat(head))) else None


def _validator(  # noqa: C901 - what is in its closure is one path, and every call on it costs
    decoder: "Decoder", kind: str, schema: str, *, exact: bool
) -> LineValidator:
    """The function that validates lines of one spec.

    Everything it needs is in its closure: this is the collector's hottest path.
    """
    decode, ids, rules = decoder.decode, decoder.ids, decoder.rules
    flat, nested = decoder.flat, decoder.nested
    astuple, new = msgspec.structs.astuple, tuple.__new__
    from_hex, unset = bytes.fromhex, msgspec.UNSET

    if decoder.own is not None:
        rules = (*rules, _fields_of_its_own(decoder.own))

    def validate(line: bytes) -> Accepted | None:
        try:
            record = decode(line)
            service, keys = _resource_of(bytes(record.resource))
            for rule in rules:
                rule(record)
            values = astuple(record)
            digits = "".join(filter(None, ids(values)))
            if from_hex(digits).hex() != digits:  # capitals, or blanks between the digits
                return None
        except (ValueError, RecursionError):
            return None
        for position, count in nested:
            if (value := values[position]) is not None:
                keys += count(value)
        for position in flat:
            if (value := values[position]) is not None:
                values += astuple(value)
        colons = line.count(b":")
        # What is zero or empty is a key, too, and missing from the first count, which is quicker.
        if keys + len([*filter(None, values)]) != colons:
            keys += len(values) - values.count(None) - values.count(unset)
            if keys != colons and (keys != key_ends(line) or _has_odd_blank(line)):
                return None
        names = tuple(record.attributes or ())
        return new(Accepted, (kind, schema, service, record.time_unix_nano, 0, exact, names))

    return validate


def _batch_validator(decoder: "Decoder", kind: str, schema: str, *, exact: bool) -> BatchValidator:
    """The function that validates many lines of one spec by the rules of `_validator`.

    A line has at least as many colons as keys. So if all lines together have as many colons as
    keys, each line has, and one comparison finds that no key is there twice or unknown. The same is
    true of the ends of keys, and of ids and their digits.
    """
    decode, ids, rules = decoder.decode, decoder.ids, decoder.rules
    flat, nested = decoder.flat, decoder.nested
    astuple, unset = msgspec.structs.astuple, msgspec.UNSET
    resource_of, time_of = attrgetter("resource"), attrgetter("time_unix_nano")
    attributes_of = attrgetter("attributes")
    make = partial(tuple.__new__, Accepted)

    if decoder.own is not None:
        rules = (*rules, _fields_of_its_own(decoder.own))

    def validate_all(lines: Sequence[bytes]) -> list[Accepted] | None:
        try:
            records = [*map(decode, lines)]
            resources = [*map(bytes, map(resource_of, records))]
            known = {text: _resource_of(text) for text in set(resources)}
            for rule in rules:
                deque(map(rule, records), maxlen=0)
            tuples = [*map(astuple, records)]
            digits = "".join(filter(None, chain.from_iterable(map(ids, tuples))))
            if bytes.fromhex(digits).hex() != digits:
                return None
        except (ValueError, RecursionError):
            return None
        keys = sum(known[text][1] * count for text, count in Counter(resources).items())
        values = [*chain.from_iterable(tuples)]
        for position, count in nested:
            keys += sum(map(count, filter(None, map(itemgetter(position), tuples))))
        for position in flat:
            found = filter(None, map(itemgetter(position), tuples))
            values.extend(chain.from_iterable(map(astuple, found)))
        text = b"".join(lines)
        colons = text.count(b":")
        if keys + len([*filter(None, values)]) != colons:
            keys += len(values) - values.count(None) - values.count(unset)
            if keys != colons and (keys != key_ends(text) or _has_odd_blank(text)):
                return None
        services = [known[text][0] for text in resources]
        names = [tuple(each or ()) for each in map(attributes_of, records)]
        return [
            *map(
                make,
                zip(
                    repeat(kind), repeat(schema), services, map(time_of, records),
                    repeat(0), repeat(exact), names, strict=False,
                ),
            )
        ]  # fmt: skip

    return validate_all


def _fields_of_its_own(own: Any) -> Callable[[Any], None]:
    """A specialised spec's fields, which lie among the attributes, as a rule."""

    def rule(record: Any) -> None:
        msgspec.convert(record.attributes or {}, own)

    return rule


def _never(_line: object) -> None:
    """Pydantic must validate the line, or the lines."""


def slow_specs() -> dict[str, str]:
    """Specs that lines have named and that pydantic alone can validate, with the reason."""
    return dict(_SLOW)


_SLOW: Final[dict[str, str]] = {}


@lru_cache(maxsize=_MEMOS_MAX)
def _validators_of(prefix: bytes) -> tuple[LineValidator, BatchValidator]:
    """Return the validators of lines that begin so; `_never` unless schema and kind come first."""
    if not AVAILABLE:
        return _never, _never
    discover()
    try:
        head = msgspec.json.decode(prefix + b"}", type=dict[str, str])
        schema, kind = head["schema"], head["kind"]
        resolution = resolve(schema, kind)
    except (ValueError, KeyError, RecursionError, RefusedSpecError):
        return _never, _never
    model = resolution.model
    if len(head) != 2 or model is None or model.model_fields["kind"].default != kind:
        return _never, _never
    decoder = _decoder_of(model)
    if decoder is None:
        return _never, _never
    found = (decoder, kind, schema)
    return _validator(*found, exact=resolution.exact), _batch_validator(
        *found, exact=resolution.exact
    )


_heads: Final[dict[bytes, tuple[bytes, LineValidator, BatchValidator]]] = {}
"""The beginning of the last line up to its second comma, and its validators, by the line's first
bytes: a comparison is quicker than a search for the comma, which is needed only where several specs
begin alike."""


def _forget() -> None:
    _heads.clear()
    _validators_of.cache_clear()


on_register(_forget)


def read_attached(line: bytes) -> tuple[bool, bool]:
    """Return whether an object has its own resource, and a time of arrival, at its top level.

    Raises:
        ValueError: The line is no JSON object.
        RecursionError: It nests too deep.
    """
    if not AVAILABLE:
        keys = from_json(line).keys()
        return "resource" in keys, "observed_time_unix_nano" in keys
    found = _attached_decoder().decode(line)  # skips all else
    return found.resource is not msgspec.UNSET, found.observed_time_unix_nano is not msgspec.UNSET


@cache
def _attached_decoder() -> Any:
    fields = [
        (name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET)
        for name in ("resource", "observed_time_unix_nano")
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Attached", fields))


def key_ends(line: bytes) -> int:
    """Count the keys of a JSON text, or more; keys with a blank before their colon are not counted.

    A quote that ends a key stands as ``":``. So does one within a string, but behind a backslash,
    as in a body that is JSON itself; only where backslashes are doubled that is not looked into.
    """
    ends = line.count(b'":')
    escaped = line.count(b'\\":') if b"\\" in line else 0  # one byte is looked for in no time
    return ends - escaped if escaped and b'\\\\":' not in line else ends


def _has_odd_blank(line: bytes) -> bool:
    """Return whether a key may precede other text than ``":``; JSON strings hold no line breaks."""
    return b" :" in line or b"\t" in line or b"\n" in line or b"\r" in line


def _read_resource(text: bytes) -> tuple[str, int]:
    """Service and number of keys of a resource; an application's is always the same.

    Raises:
        ValueError: It breaks a rule.
    """
    every, named = _resource_types()
    fields = every.decode(text)
    return str(msgspec.convert(fields, named).service_name), len(fields)


_known_resource: Final = lru_cache(maxsize=_MEMOS_MAX)(_read_resource)


def _resource_of(text: bytes) -> tuple[str, int]:
    """`_read_resource` with a cache for small resources."""
    return _known_resource(text) if len(text) <= _MEMO_BYTES_MAX else _read_resource(text)


@cache
def _resource_types() -> tuple[Any, Any]:
    return resource_types()


@lru_cache(maxsize=_MEMOS_MAX)
def _decoder_of(model: type[Record]) -> "Decoder | None":
    try:
        return generate(model)
    except (UngeneratableError, TypeError) as error:
        _SLOW[model.spec] = str(error)
        _LOGGER.warning("%s is validated by pydantic alone, which is slower: %s", model.spec, error)
        return None
