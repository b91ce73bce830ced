"""Exceptions as data: type, message, frames and causes; never the values of local variables."""

import hashlib
import traceback
from collections.abc import Iterator

from penstock.specs.attributes import clean_text
from penstock.specs.limits import (
    EXCEPTION_CAUSES_MAX,
    EXCEPTION_FRAMES_MAX,
    STRING_CHARACTERS_MAX,
)


def exception_attributes(error: BaseException) -> dict[str, str]:
    """OpenTelemetry's ``exception.*`` attributes, and a fingerprint.

    The fingerprint is made of the types and of where the frames are, without line numbers and
    messages: equal for the same fault across releases that only moved code.
    """
    parts: list[str] = []
    places: list[str] = []
    for link in _chain(error):
        name = _type_name(link)
        frames = _frames(link)
        places.append(name)
        places += [f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in frames]
        shown = [f'  File "{f.filename}", line {f.lineno}, in {f.name}' for f in frames]
        parts.append("\n".join([f"{name}: {clean_text(link)}", *shown]))
    fingerprint = hashlib.blake2b("\n".join(places).encode("utf-8", "replace"), digest_size=8)
    return {
        "exception.type": _type_name(error),
        "exception.message": clean_text(error),
        "exception.stacktrace": clean_text("\ncaused by ".join(parts), STRING_CHARACTERS_MAX),
        "exception.fingerprint": fingerprint.hexdigest(),
    }


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
