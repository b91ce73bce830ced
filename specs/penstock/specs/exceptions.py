"""Exceptions as data: type, message, frames, causes, members; never the values of locals."""

import hashlib
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from penstock.specs.attributes import clean_text
from penstock.specs.limits import (
    EXCEPTION_CAUSES_MAX,
    EXCEPTION_FRAMES_MAX,
    EXCEPTION_MEMBERS_MAX,
    STRING_CHARACTERS_MAX,
)


def exception_attributes(error: BaseException) -> dict[str, Any]:
    """OpenTelemetry's ``exception.*`` attributes, and a fingerprint.

    The fingerprint is made of the types and of where the frames are, without line numbers and
    messages: equal for the same fault across releases that only moved code. Of an exception group's
    members it is neither their order nor how many are alike, which are chance. An exception keeps
    the one that it had where it was looked at first: its frames grow on its way up, and all spans
    and log records of it are to agree. One that is a constant has another wherever it is raised
    anew ``with_traceback(None)``, if its way to where it was looked at first is another; without
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


def fingerprint(error: BaseException) -> str:
    """That of `exception_attributes` alone; empty where an odd exception cannot be looked at."""
    try:
        return _kept(error) or _keep(error, _Account().of(error))
    except Exception:  # noqa: BLE001 - what is raised must go on, whatever it is
        return ""


_KEPT: Final = "__penstock_fingerprint__"


def _kept(error: BaseException) -> str | None:
    """The fingerprint from where it was looked at first, if it is still raised from there."""
    where, found = _members(error).get(_KEPT) or ((), None)
    here = _way(error)
    return found if (here[-len(where) :] if where else here) == where else None


def _keep(error: BaseException, computed: str) -> str:
    _members(error)[_KEPT] = (_way(error), computed)
    return computed


def _members(error: BaseException) -> dict[str, Any]:
    """What it holds, whatever its class makes of attributes."""
    members: dict[str, Any] = object.__getattribute__(error, "__dict__")
    return members


def _way(error: BaseException) -> tuple[tuple[str, int], ...]:
    """Where it was raised and passed, innermost last, which only grows while it goes up.

    An exception that is a constant is raised in many places, also by one helper for many.
    """
    frames = traceback.walk_tb(error.__traceback__)
    places = ((frame.f_code.co_filename, line) for frame, line in frames)
    return tuple(deque(places, maxlen=EXCEPTION_FRAMES_MAX))


def _stacktrace(error: BaseException) -> str:
    """As Python reports it, with source lines, notes, causes and groups; its middle may be cut."""
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
    half = (STRING_CHARACTERS_MAX - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


_CUT: Final = "\n  …\n"


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
    """Whether it has too many members, those of groups within it included."""
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
        """That of an exception, its causes and its members."""
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
