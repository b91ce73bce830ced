"""Whatever an application hands over, as the flat attributes that a record allows."""

import hashlib
import json
import math
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.specs.limits import (
    ATTRIBUTE_DEPTH_SOFT,
    ATTRIBUTES_MAX,
    DEPTH_MAX,
    EXCEPTION_CAUSES_MAX,
    EXCEPTION_FRAMES_MAX,
    EXCEPTION_MEMBERS_MAX,
    INT64_MAX,
    INT64_MIN,
    KEY_CHARACTERS_MAX,
    LIST_ITEMS_MAX,
    STRING_CHARACTERS_MAX,
    STRING_CHARACTERS_SOFT,
)
from penstock.specs.redact.detectors import sensitivity_of_name
from penstock.specs.redact.sensitivity import redacted

Scalar = str | bool | int | float | None
Value = Scalar | list[Scalar]
LONG_KEYS = frozenset({"exception.stacktrace"})
"""Attributes that may be longer than the soft bound of a string."""


def clean_attributes(given: Mapping[Any, Any]) -> tuple[dict[str, Value], int]:
    """Lay a mapping out flat; returns the attributes, and how many did not fit or were cut.

    Nested mappings become dotted keys, what lies deeper, and mappings and lists within a list,
    JSON text each; numbers that int64 or JSON cannot hold become text, other objects their `str`.
    Long text and long lists are cut, and end in "…".
    """
    attributes: dict[str, Value] = {}
    dropped = 0
    for key, value in _leaves(given, "", ATTRIBUTE_DEPTH_SOFT):
        if len(attributes) >= ATTRIBUTES_MAX or not 0 < len(key) <= KEY_CHARACTERS_MAX:
            dropped += 1
        else:
            plain = attributes[key] = _tried(value, key)
            if plain != value and _is_cut(plain):
                dropped += 1
    return attributes, dropped


def _is_cut(plain: Value) -> bool:
    """Return whether the value ends as truncated values do."""
    if isinstance(plain, list):
        return any(map(_is_cut, plain))
    if not isinstance(plain, str) or _CUT not in plain:
        return False
    cut_text = plain.endswith(_CUT) and len(plain) in (
        1,
        STRING_CHARACTERS_SOFT,
        STRING_CHARACTERS_MAX,
    )
    return cut_text or f'"{_CUT}"' in plain


_CUT: Final = "…"


def has_plain_values(given: Mapping[Any, Any]) -> bool:
    """Return whether `clean_attributes` would change no value; a fast check."""
    for value in given.values():
        kind = value.__class__
        if kind is str:
            if len(value) > STRING_CHARACTERS_SOFT:
                return False
        elif kind is int:
            if not INT64_MIN <= value <= INT64_MAX:
                return False
        elif kind is float:
            if value - value != 0.0:
                return False
        elif kind is not bool and value is not None:
            return False
    return True


def clean_text(value: Any, characters_max: int = STRING_CHARACTERS_SOFT) -> str:
    """Text of bounded length; an object that cannot say what it is becomes its type's name."""
    try:
        text = value if value.__class__ is str else str(value)
    except Exception:  # noqa: BLE001 - any object may be logged, also one with a broken __str__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= characters_max else text[: characters_max - 1] + _CUT


def clean_body(value: Any) -> str:
    """The text of a message; of a mapping or list as JSON."""
    if not isinstance(value, (Mapping, *_LISTS)):
        return clean_text(value)
    try:
        return str(_unusual(value))
    except Exception:  # noqa: BLE001 - any mapping may be logged, also one that is broken
        return clean_text(value)


def encodable(value: Any) -> Any:
    """Return the JSON value with lone surrogates replaced, for text that is not Unicode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {encodable(str(key)): encodable(member) for key, member in value.items()}
    if isinstance(value, list):
        return [encodable(member) for member in value]
    return value


def _tried(value: Any, key: str) -> Value:
    """The value, or its type's name when it cannot be looked at."""
    try:
        return _plain(value, key)
    except Exception:  # noqa: BLE001 - a proxy without its object, a number of 5,000 digits
        return f"<{type(value).__name__}>"


def _leaves(given: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in list(given.items()):
        name = prefix + (key if key.__class__ is str else clean_text(key))
        if isinstance(value, Mapping) and depth > 1 and (inner := _members(value)):
            yield from _leaves(inner, f"{name}.", depth - 1)
        else:
            yield name, value


def _members(given: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy of a nested mapping; empty when another thread or the mapping itself prevents it."""
    try:
        return dict(given.items())
    except Exception:  # noqa: BLE001 - any mapping may be logged, also one that is broken
        return {}


def _plain(value: Any, key: str) -> Value:
    if isinstance(value, _LISTS):
        if len(value) <= LIST_ITEMS_MAX:
            return [_scalar(item, key) for item in list(value)]
        return [*(_scalar(item, key) for item in list(value)[: LIST_ITEMS_MAX - 1]), _CUT]
    return _scalar(value, key)


def _scalar(value: Any, key: str) -> Scalar:
    kind = type(value)
    if kind is str:
        if len(value) <= STRING_CHARACTERS_SOFT:
            return str(value)
        return clean_text(
            value, STRING_CHARACTERS_MAX if key in LONG_KEYS else STRING_CHARACTERS_SOFT
        )
    if value is None or kind is bool:
        return value  # type: ignore[no-any-return]  # narrowed by its class, which mypy cannot see
    if kind is int:
        return int(value) if INT64_MIN <= value <= INT64_MAX else str(value)
    if kind is float:
        return float(value) if math.isfinite(value) else str(value)
    return _unusual(value)


def _unusual(value: Any) -> Scalar:
    """Subclasses of the plain types (enums, numpy floats), bytes, and all other objects."""
    if isinstance(value, (Mapping, *_LISTS)):
        return clean_text(json.dumps(_Structure().of(value, DEPTH_MAX), ensure_ascii=False))
    if isinstance(value, bytes):
        return clean_text(value[:STRING_CHARACTERS_SOFT].decode("utf-8", "replace"))
    if isinstance(value, float):
        return _scalar(float(value), "")
    if isinstance(value, int):
        return _scalar(int(value), "")
    return clean_text(value.value if hasattr(value, "_value_") else value)


_LISTS: Final = (list, tuple, set, frozenset)


class _Structure:
    """Makes JSON values of mappings and lists; as many of their members as one list may have.

    What a member's name says is sensitive is redacted here: behind this it is text, which nobody
    looks into by names.
    """

    def __init__(self) -> None:
        self._left = LIST_ITEMS_MAX

    def of(self, value: Any, depth: int) -> Any:
        """One value, with so many levels below it."""
        if depth > 0 and isinstance(value, Mapping):
            members = self._some(list(value.items()), (_CUT, _CUT))
            named = ((clean_text(key), each) for key, each in members)
            return {name: self._member(name, each, depth - 1) for name, each in named}
        if depth > 0 and isinstance(value, _LISTS):
            return [self.of(each, depth - 1) for each in self._some(list(value), _CUT)]
        return clean_text(value) if isinstance(value, (Mapping, *_LISTS)) else _scalar(value, "")

    def _member(self, name: str, value: Any, depth: int) -> Any:
        sensitivity = None if value is None else sensitivity_of_name(name)
        return self.of(value, depth) if sensitivity is None else redacted(sensitivity)

    def _some(self, members: list[Any], instead: Any) -> Iterator[Any]:
        for member in members:
            if self._left <= 0:
                yield instead
                return
            self._left -= 1
            yield member


def exception_attributes(error: BaseException) -> dict[str, Any]:
    """OpenTelemetry's ``exception.*`` attributes, and a fingerprint.

    The fingerprint is made of the types and of where the frames are, without line numbers and
    messages: equal for the same fault across releases that only moved code. Of an exception group's
    members it is neither their order nor how many are alike, which are chance. An exception keeps
    the one that it had where it was looked at first: its frames grow on its way up, and all spans
    and log records of it are to agree. One that is a constant has another wherever it is raised
    again ``with_traceback(None)``, if its way to where it was looked at first is another; without
    that it has all its earlier frames still, and so keeps the first.

    A group has ``exception.group.size`` and ``exception.group.types``, too: the number of its
    members, and the different types of those that were looked at.
    """
    computed = _Account().of(error)
    attributes: dict[str, Any] = {
        "exception.type": _type_name(error),
        "exception.message": clean_text(error),
        "exception.stacktrace": _stacktrace(error),
        "exception.fingerprint": _kept(error) or _keep(error, computed),
    }
    if isinstance(error, BaseExceptionGroup):
        members = error.exceptions[:EXCEPTION_MEMBERS_MAX]
        attributes["exception.group.size"] = len(error.exceptions)
        attributes["exception.group.types"] = sorted({_type_name(each) for each in members})
    return attributes


_KEPT: Final = "__penstock_fingerprint__"


def _kept(error: BaseException) -> str | None:
    """The fingerprint from where it was looked at first, if it is still raised from there."""
    where, found = _exceptions_members(error).get(_KEPT) or ((), None)
    here = _way(error)
    return found if (here[-len(where) :] if where else here) == where else None


def _keep(error: BaseException, computed: str) -> str:
    _exceptions_members(error)[_KEPT] = (_way(error), computed)
    return computed


def _exceptions_members(error: BaseException) -> dict[str, Any]:
    """Return an exception's members, whatever its class does about attributes."""
    members: dict[str, Any] = object.__getattribute__(error, "__dict__")
    return members


def _way(error: BaseException) -> tuple[tuple[str, int], ...]:
    """Return where it was raised and passed, innermost last; it only grows on the way up.

    An exception that is a constant is raised in many places, also by one helper for many.
    """
    frames = traceback.walk_tb(error.__traceback__)
    places = ((frame.f_code.co_filename, line) for frame, line in frames)
    return tuple(deque(places, maxlen=EXCEPTION_FRAMES_MAX))


def _stacktrace(error: BaseException) -> str:
    """Return Python's report with source lines, causes and groups; its middle may be cut."""
    error = _bounded(error)
    told = traceback.TracebackException(
        type(error),
        error,
        error.__traceback__,
        limit=-EXCEPTION_FRAMES_MAX,
        max_group_width=EXCEPTION_MEMBERS_MAX,
        max_group_depth=EXCEPTION_CAUSES_MAX,
        compact=True,
    )
    _cut_chain(told)
    text = "".join(told.format()).rstrip("\n")
    if len(text) <= STRING_CHARACTERS_MAX:
        return text
    half = (STRING_CHARACTERS_MAX - len(_STACK_CUT)) // 2
    return text[:half] + _STACK_CUT + text[-half:]


_STACK_CUT: Final = "\n  …\n"


def _bounded(error: BaseException) -> BaseException:
    """The error, or a group with the first of its members: each of thousands takes time."""
    if not isinstance(error, BaseExceptionGroup) or not _is_large(error):
        return error
    first = error.exceptions[:EXCEPTION_MEMBERS_MAX]
    members = [each for each in first if not isinstance(each, BaseExceptionGroup)]
    members = members or [ValueError("exception groups that are too large to be shown")]
    fewer = BaseExceptionGroup(error.message, members).with_traceback(error.__traceback__)
    fewer.__notes__ = [
        *getattr(error, "__notes__", ()),
        f"and {len(error.exceptions) - len(members)} more exceptions",
    ]
    fewer.__cause__, fewer.__context__ = error.__cause__, error.__context__
    fewer.__suppress_context__ = error.__suppress_context__
    return fewer


def _is_large(group: BaseExceptionGroup[Any]) -> bool:
    """Return whether the group has too many members, including those of nested groups."""
    left = [group]
    count = 0
    while left and count <= _GROUP_MEMBERS_SHOWN:
        members = left.pop().exceptions
        count += len(members)
        left += [each for each in members if isinstance(each, BaseExceptionGroup)]
    return count > _GROUP_MEMBERS_SHOWN


_GROUP_MEMBERS_SHOWN: Final = 64


def _cut_chain(told: traceback.TracebackException) -> None:
    """Leave out causes beyond the bound."""
    for _ in range(EXCEPTION_CAUSES_MAX - 1):
        cause = told.__cause__ or (None if told.__suppress_context__ else told.__context__)
        if cause is None:
            return
        told = cause
    told.__cause__ = told.__context__ = None


class _Account:
    """Makes the fingerprint of one exception with all that belongs to it, within bounds."""

    def __init__(self) -> None:
        self._members_left = EXCEPTION_MEMBERS_MAX
        self._told: set[int] = set()

    def of(self, error: BaseException) -> str:
        """Return the fingerprint of an exception, its causes and its members."""
        places: list[str] = []
        for link in _chain(error):
            places.append(_type_name(link))
            frames = _frames(link)
            places += [f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in frames]
            if isinstance(link, BaseExceptionGroup) and id(link) not in self._told:
                self._told.add(id(link))
                places += self._members(link)
        digest = hashlib.blake2b("\n".join(places).encode("utf-8", "replace"), digest_size=8)
        return digest.hexdigest()

    def _members(self, group: BaseExceptionGroup[Any]) -> list[str]:
        """The fingerprints of a group's members, each once; sorted."""
        faults: set[str] = set()
        for member in group.exceptions:
            if self._members_left == 0:
                break
            self._members_left -= 1
            faults.add(self.of(member))
        return sorted(faults)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what caused it, as Python's own report would; bounded, and free of loops."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < EXCEPTION_CAUSES_MAX:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The innermost frames, outermost first; source lines are not read from disk."""
    walked = list(traceback.walk_tb(error.__traceback__))[-EXCEPTION_FRAMES_MAX:]
    return list(traceback.StackSummary.extract(iter(walked), lookup_lines=False))


def _type_name(error: BaseException) -> str:
    cls = type(error)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
