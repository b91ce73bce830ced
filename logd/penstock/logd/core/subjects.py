"""NATS subjects: which are valid, which a stream may bind, and which streams match one.

A subject is tokens joined by dots. In a filter, `*` matches one token and a final `>` matches one
or more. `SubjectTrie` finds every value whose filter matches a subject in one walk.
"""

import re
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from penstock.logd.errors import RefusedError
from penstock.logd.limits import SUBJECT_LENGTH_MAX

Value = TypeVar("Value")

_TOKEN: Final = re.compile(r"[^\s.\x00-\x20\x7f]+")
_RESERVED_ROOTS: Final = ("_INBOX", "_R_", "_GR_", "_PENSTOCK")
_CACHE_SIZE_MAX: Final = 8192


def check_filter(subject: str) -> None:
    """Check that a subject filter is well formed.

    Raises:
        RefusedError: `BAD_SUBJECT`, with the reason.
    """
    if not subject or len(subject.encode("utf-8", "surrogatepass")) > SUBJECT_LENGTH_MAX:
        _refuse(subject, f"a subject has 1 to {SUBJECT_LENGTH_MAX} bytes")
    tokens = subject.split(".")
    for position, word in enumerate(tokens):
        if not _TOKEN.fullmatch(word):
            _refuse(subject, "tokens between dots must not be empty or hold spaces or controls")
        if "*" in word and len(word) > 1:
            _refuse(subject, "`*` must stand alone as a token")
        if ">" in word and (len(word) > 1 or position != len(tokens) - 1):
            _refuse(subject, "`>` must stand alone as the last token")


def check_stream_subject(subject: str) -> None:
    """Check that a stream may bind a filter: valid, and free of inbox and system traffic.

    A stream that stored the acks logd sends would feed itself, so every filter that could match an
    inbox, a NATS system subject or one of logd's own is refused.

    Raises:
        RefusedError: `BAD_SUBJECT`, with the reason.
    """
    check_filter(subject)
    first = subject.split(".", 1)[0]
    if first in ("*", ">"):
        _refuse(subject, "the first token must not be a wildcard: it would match acks and inboxes")
    if first in _RESERVED_ROOTS or first.startswith("$"):
        _refuse(subject, f"subjects under {first!r} carry NATS's or logd's own traffic")


def matches(subject_filter: str, subject: str) -> bool:
    """Whether a filter matches a subject without wildcards."""
    wanted, given = subject_filter.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        want in ("*", token) for want, token in zip(wanted, given, strict=True)
    )


class SubjectTrie(Generic[Value]):
    """Values by subject filter; several values may share a filter.

    Lookups are cached by subject; a change of the trie empties the cache, which is bounded.
    """

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node()
        self._cache: dict[str, tuple[Value, ...]] = {}

    def insert(self, subject_filter: str, value: Value) -> None:
        """Add a value under a filter that `check_filter` accepts."""
        node = self._root
        for token in subject_filter.split("."):
            node = node.children.setdefault(token, _Node())
        node.values.append(value)
        self._cache.clear()

    def remove(self, subject_filter: str, value: Value) -> None:
        """Remove one value from under a filter.

        Raises:
            KeyError: It is not there.
        """
        path = [self._root]
        tokens = subject_filter.split(".")
        for token in tokens:
            path.append(path[-1].children[token])
        if value not in path[-1].values:
            raise KeyError(subject_filter)
        path[-1].values.remove(value)
        for token, parent in zip(reversed(tokens), reversed(path[:-1]), strict=True):
            child = parent.children[token]
            if not child.values and not child.children:
                del parent.children[token]
        self._cache.clear()

    def match(self, subject: str) -> tuple[Value, ...]:
        """The values whose filters match a subject, in no particular order."""
        found = self._cache.get(subject)
        if found is None:
            if len(self._cache) >= _CACHE_SIZE_MAX:
                self._cache.clear()
            found = self._cache[subject] = tuple(_walk(self._root, subject.split("."), 0))
        return found


class _Node(Generic[Value]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Value]] = {}
        self.values: list[Value] = []


def _walk(node: _Node[Value], tokens: list[str], position: int) -> Iterator[Value]:
    if position == len(tokens):
        yield from node.values
        return
    children = node.children
    rest = children.get(">")
    if rest is not None:
        yield from rest.values
    token = tokens[position]
    for name in (token, "*") if token not in ("*", ">") else ("*",):
        child = children.get(name)
        if child is not None:
            yield from _walk(child, tokens, position + 1)


def _refuse(subject: str, reason: str) -> None:
    raise RefusedError("BAD_SUBJECT", f"subject {subject!r}: {reason}", subject=subject)
