"""NATS subjects: which are valid, which a stream may bind, and which streams match one.

A subject is tokens joined by dots. In a filter, `*` matches one token and a final `>` matches one
or more. `SubjectTrie` finds every value whose filter matches a subject.

Following the trie token by token means following several nodes at once, because each node may have
a child for the token and one for `*`. That is a nondeterministic automaton, and it is made
deterministic while it is used, state by state, as regular expression engines do (K. Thompson,
"Regular Expression Search Algorithm", CACM 11(6), 1968): a `_State` is the set of nodes that some
tokens lead to, and caches where the next ones lead. Only tokens that occur in filters are
cached; all others share one way on, so that the cache depends on the filters and not
on what is published.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar

from penstock.logd.errors import RefusedError
from penstock.logd.limits import SUBJECT_LENGTH_MAX

Value = TypeVar("Value")

_TOKEN: Final = re.compile(r"[^\s.\x00-\x20\x7f]+")
_INBOX: Final = "_INBOX"
_RESERVED: Final = (_INBOX, "_R_.", "_GR_.", "_PENSTOCK", "$")
RESERVED_PREFIXES: Final = tuple(prefix.encode() for prefix in _RESERVED)
"""Prefixes of subjects that no stream stores: of inboxes, also with their own names
(`_INBOX_tom`), of NATS itself (`$SYS`, `$JS`, and `_R_`, `_GR_` of its replies), and of logd."""

_WILDCARDS: Final = ("*", ">")
_CACHE_SIZE_MAX: Final = 8192
_STATES_MAX: Final = 16_384
"""States of one trie, each a few hundred bytes; beyond it they are made again when needed."""


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


def check_stream_subject(subject: str, *, ack_on_reply: bool) -> None:
    """Check that a stream may bind a filter: valid, and free of inbox and system traffic.

    A stream that stored the acks logd sends would feed itself, so every filter of inboxes, of NATS
    system subjects or of logd's own is refused. One that begins with a wildcard matches everybody's
    requests, too, whose answer an ack would be taken for: it must not ack. Of what it matches,
    reserved subjects are skipped as they arrive.

    Raises:
        RefusedError: `BAD_SUBJECT`, with the reason.
    """
    check_filter(subject)
    if begins_with_wildcard(subject) and ack_on_reply:
        _refuse(subject, "a filter that begins with a wildcard needs `ack_on_reply: false`")
    if is_reserved(f"{subject}."):
        first = subject.split(".", 1)[0]
        _refuse(subject, f"subjects under {first!r} carry NATS's or logd's own traffic")


def begins_with_wildcard(subject_filter: str) -> bool:
    """Return whether a filter may match reserved subjects."""
    return subject_filter[:1] in ("*", ">")


def is_reserved(subject: str) -> bool:
    """Return whether no stream stores a subject, whatever its filter."""
    return subject.startswith(_RESERVED)


def is_inbox(subject: str) -> bool:
    """Return whether a subject is an inbox, which no stream stores."""
    return subject.startswith(_INBOX)


def matches(subject_filter: str, subject: str) -> bool:
    """Return whether a filter matches a subject without wildcards."""
    wanted, given = subject_filter.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        want in ("*", token) for want, token in zip(wanted, given, strict=True)
    )


def overlaps(one: str, other: str) -> bool:
    """Return whether two filters match a subject in common."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(left) == len(right)


class SubjectTrie(Generic[Value]):
    """Values by subject filter; several values may share a filter.

    Lookups are cached by subject, and ways through the trie by their tokens. Both caches are
    bounded, and a change of the trie empties them.

    Args:
        cache_size_max: Subjects.
        states_max: Sets of nodes that some tokens lead to.

    Attributes:
        states: Number of cached states.
    """

    def __init__(
        self, *, cache_size_max: int = _CACHE_SIZE_MAX, states_max: int = _STATES_MAX
    ) -> None:
        self._cache_size_max, self._states_max = cache_size_max, states_max
        self._root: _Node[Value] = _Node()
        self._cache: dict[str, tuple[Value, ...]] = {}
        self._start = _State([self._root], ())
        self.states = 0

    def insert(self, subject_filter: str, value: Value) -> None:
        """Add a value under a filter that `check_filter` accepts."""
        node = self._root
        for token in subject_filter.split("."):
            node = node.children.setdefault(token, _Node())
        node.values.append(value)
        self._forget()

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
        self._forget()

    def match(self, subject: str) -> tuple[Value, ...]:
        """The values whose filters match a subject, in no particular order."""
        found = self._cache.get(subject)
        if found is not None:
            return found
        *tokens, last = subject.split(".")
        state = self._start
        for token in tokens:
            state = state.edges.get(token) or self._follow(state, token)
        values = [*state.values]
        if last not in _WILDCARDS:
            for children in state.children:
                child = children.get(last)
                if child is not None:
                    values += child.values
        found = tuple(values)
        if len(subject) <= SUBJECT_LENGTH_MAX:  # no client publishes on a longer one
            if len(self._cache) >= self._cache_size_max:
                self._cache.clear()
            self._cache[subject] = found
        return found

    def covering(self, subject_filter: str) -> tuple[Value, ...]:
        """The values whose filters match all that a filter matches, each under one filter only.

        A `*` is a token that no filter names, so that only wildcards match it. What a `>` stands
        for is one such token, or more: filters without a `>` have one length and match but one.
        """
        if subject_filter != ">" and not subject_filter.endswith(".>"):
            return self.match(subject_filter)
        stem = subject_filter[:-1]
        longer = self.match(f"{stem}*.*")
        return tuple(value for value in self.match(f"{stem}*") if value in longer)

    def touching(self, subject_filter: str) -> tuple[Value, ...]:
        """The values whose filters match some subject that a filter matches, too.

        Both may have wildcards, so that each step follows every child that one of the two allows:
        what is looked at are the filters with a beginning in common, not all of them. Nothing is
        cached.
        """
        *tokens, last = subject_filter.split(".")
        nodes = [self._root]
        found: list[Value] = []
        for token in tokens:
            nodes = list(_step(nodes, token, found))
        if last == ">":
            for node in nodes:
                found += _below(node)
        else:
            for node in _step(nodes, last, found):
                found += node.values
        return tuple(found)

    def _follow(self, state: "_State[Value]", token: str) -> "_State[Value]":
        """Find where a token leads that `state` does not have, and cache it."""
        nodes = []
        if token not in _WILDCARDS:
            for children in state.children:
                child = children.get(token)
                if child is not None:
                    nodes.append(child)
        if not nodes and state.others is not None:
            return state.others
        following = _State([*nodes, *state.stars], state.rest)
        self.states += 1
        if self.states >= self._states_max:
            self._start, self.states = _State([self._root], ()), 0
        if nodes:
            state.edges[token] = following
        else:
            state.others = following
        return following

    def _forget(self) -> None:
        self._cache.clear()
        self._start = _State([self._root], ())
        self.states = 0


class _Node(Generic[Value]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Value]] = {}
        self.values: list[Value] = []


class _State(Generic[Value]):
    """The nodes that a subject's first tokens lead to. At least one more token follows.

    Attributes:
        children: Child nodes by token.
        stars: The nodes that any next token leads to.
        rest: Values of filters that end in `>`, here or on the way here: any more tokens match.
        values: Those, and what matches if one more token follows, whatever it is.
        edges: Cached next state by token, for tokens for which some node has a child.
        others: Cached next state of any other token.
    """

    __slots__ = ("children", "edges", "others", "rest", "stars", "values")

    def __init__(self, nodes: Sequence[_Node[Value]], rest: tuple[Value, ...]) -> None:
        self.children = [node.children for node in nodes if node.children]
        self.stars = [found for node in nodes if (found := node.children.get("*")) is not None]
        for children in self.children:
            tail = children.get(">")
            if tail is not None:
                rest += tuple(tail.values)
        self.rest = rest
        self.values = (*rest, *chain.from_iterable(star.values for star in self.stars))
        self.edges: dict[str, _State[Value]] = {}
        self.others: _State[Value] | None = None


def _step(nodes: Sequence[_Node[Value]], token: str, found: list[Value]) -> Iterator[_Node[Value]]:
    """The nodes that a token of a filter, or anything where it is `*`, leads to from others.

    The values of filters that end there in `>` are added to `found`.
    """
    for node in nodes:
        children = node.children
        if not children:
            continue
        tail = children.get(">")
        if tail is not None:
            found += tail.values
        if token == "*":  # noqa: S105 - of a subject
            yield from (child for word, child in children.items() if word != ">")
            continue
        for word in (token, "*"):
            child = children.get(word)
            if child is not None:
                yield child


def _below(node: _Node[Value]) -> Iterator[Value]:
    """The values of all filters that have a node's tokens and more."""
    waiting = [*node.children.values()]
    while waiting:
        one = waiting.pop()
        yield from one.values
        waiting += one.children.values()


def _refuse(subject: str, reason: str) -> None:
    raise RefusedError("BAD_SUBJECT", f"subject {subject!r}: {reason}", subject=subject)
