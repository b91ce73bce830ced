"""Access rules on streams and subjects, and their translation to nats-server's permissions.

A rule allows or denies a principal an action on a resource. Who no rule allows something may not do
it; a rule that denies counts more than any that allows; superusers may everything.

| principal | whom it means |
|---|---|
| `alice` | the principal of this name, identified in any way |
| `group:ops` | every member of this group |
| `*` | everybody, also who has not said who they are |

| resource | what it means |
|---|---|
| `orders` | the stream of this name |
| `orders-*` | the streams whose names begin so |
| `subject:telemetry.logs.>` | what is published on the subjects of this filter |
| `*` | everything: all streams, and the cluster itself |

A rule that allows on a filter allows what lies within it and nothing wider: a stream only if all
that it stores does. One that denies denies what has any subject in common with it. What a stream
stores is not seen from its name, so `create` is allowed on subjects only: else a stream named as
permitted could be made of anybody's messages. logd's own streams, whose names begin with `__`, are
only meant by resources that begin so, too.

Rules as nats-server's permissions: what logd cannot enforce where it is not asked.

nats-server knows subjects only, and users instead of principals: a rule about streams becomes one
about the subjects that they store as they are now, a rule about everybody is part of every user's
and the default, and one about a group cannot be said. Its matching is ours: what is published must
match a subject that is allowed and none that is denied.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import SubjectTrie, begins_with_wildcard, check_filter, overlaps
from penstock.logd.limits import PRINCIPAL_LENGTH_MAX, STREAM_NAME_LENGTH_MAX, SUBJECT_LENGTH_MAX
from penstock.logd.metadata.streams import INTERNAL_PREFIX, is_internal

EVERYBODY: Final = "*"
EVERYTHING: Final = "*"
GROUP: Final = "group:"
SUBJECT: Final = "subject:"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+\*?")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DECISIONS_MAX: Final = 8192
"""Cached decisions, each some hundred bytes; a reader's fetches ask for the same."""


_REMEMBERED_LENGTH_MAX: Final = 4 * SUBJECT_LENGTH_MAX
"""Characters of a target; what is longer can only be refused, and must not fill the memory."""


class Action(StrEnum):
    """Action that a principal wants to perform."""

    PUBLISH = "publish"
    READ = "read"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    CURSOR = "cursor"
    """See and set cursors, and be a member of consumer groups."""
    ADMIN = "admin"
    """Say where replicas are and who leads; and on everything: nodes, rules and quotas."""


class Effect(StrEnum):
    """Effect of a rule."""

    ALLOW = "allow"
    DENY = "deny"


class AclRule(Struct, frozen=True, kw_only=True, order=True, forbid_unknown_fields=True):
    """One rule; the table above says what principal and resource mean."""

    principal: str
    effect: Effect
    action: Action
    resource: str

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that follow from the rest."""
        text = f"{self.principal}\0{self.effect}\0{self.action}\0{self.resource}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @property
    def text(self) -> str:
        return f"{self.effect} {self.principal} {self.action} {self.resource}"


class OnStream(Struct, frozen=True):
    """A stream is concerned, that there is or that is to be made.

    Attributes:
        filters: Filters of the subjects that it stores; empty: unknown, or a stream of logd's own.
        only: Filter of the part that is meant; None: the whole stream.
    """

    name: str
    filters: tuple[str, ...] = ()
    only: str | None = None


class OnSubject(Struct, frozen=True):
    """A subject is concerned, or all that a filter matches.

    Attributes:
        streams: Streams that store it.
    """

    subject: str
    streams: tuple[str, ...] = ()


class OnCluster(Struct, frozen=True):
    """No stream in particular."""


Target: TypeAlias = OnStream | OnSubject | OnCluster


class Decision(Struct, frozen=True):
    """Decision on an action.

    Attributes:
        rule: The rule that decided; None: none did, or the principal is a superuser.
        superuser: Whether the principal is a superuser.
        granted: Whether the rule stands in the configuration.
    """

    allowed: bool
    rule: AclRule | None = None
    superuser: bool = False
    granted: bool = False

    @property
    def reason(self) -> str:
        """Why, in words."""
        if self.superuser:
            return "a superuser of the configuration"
        if self.rule is None:
            return "no rule allows it"
        if self.granted:
            return f"granted by the configuration: {self.rule.text}"
        return f"rule {self.rule.id}: {self.rule.text}"


class _Book(Struct):
    """The rules of one effect on one action."""

    everything: list[AclRule] = msgspec.field(default_factory=list)
    names: dict[str, list[AclRule]] = msgspec.field(default_factory=dict)
    prefixes: list[tuple[str, AclRule]] = msgspec.field(default_factory=list)
    trie: SubjectTrie[AclRule] = msgspec.field(default_factory=SubjectTrie)

    def add(self, rule: AclRule) -> None:
        resource = rule.resource
        if resource == EVERYTHING:
            self.everything.append(rule)
        elif resource.startswith(SUBJECT):
            self.trie.insert(resource.removeprefix(SUBJECT), rule)
        elif resource.endswith("*"):
            self.prefixes.append((resource[:-1], rule))
        else:
            self.names.setdefault(resource, []).append(rule)

    def named(self, stream: str) -> Iterator[AclRule]:
        """Yield rules that name the stream."""
        yield from self.names.get(stream, ())
        for prefix, rule in self.prefixes:
            if stream.startswith(prefix) and (
                not is_internal(stream) or prefix.startswith(INTERNAL_PREFIX)
            ):
                yield rule

    def covering(self, subject_filter: str) -> Iterator[AclRule]:
        """Yield rules on filters that cover the whole filter."""
        yield from self.trie.covering(subject_filter)

    def touching(self, subject_filter: str) -> Iterator[AclRule]:
        """Yield rules on filters that have a subject in common with the filter."""
        yield from sorted(self.trie.touching(subject_filter))


class Acl:
    """Rules, ready to decide. Immutable, but for its cache.

    Args:
        rules: Rules that `check_rule` accepts.
        superusers: Names and groups, written as in rules, that may everything; `*` is none.
        grants: Rules of the configuration, which allow something.
    """

    def __init__(
        self,
        rules: Iterable[AclRule],
        superusers: Iterable[str] = (),
        grants: Iterable[AclRule] = (),
    ) -> None:
        self.rules = tuple(sorted(rules))
        self.superusers = frozenset(superusers) - {EVERYBODY}
        self.grants = tuple(sorted(set(grants) - set(self.rules)))
        self._granted = frozenset(self.grants)
        self._books = {(effect, action): _Book() for effect in Effect for action in Action}
        for rule in (*self.rules, *self.grants):
            self._books[rule.effect, rule.action].add(rule)
        self._known: dict[tuple[str, frozenset[str], Action, Target], Decision] = {}

    def decide(self, name: str, groups: frozenset[str], action: Action, target: Target) -> Decision:
        """Decide whether a principal may perform an action.

        Args:
            name: The principal's name.
            groups: The principal's groups.
            action: The action.
            target: The target of the action.
        """
        key = (name, groups, action, target)
        found = self._known.get(key)
        if found is None:
            found = self._decide(_meant(name, groups), action, target)
            if _length(target) <= _REMEMBERED_LENGTH_MAX:
                if len(self._known) >= _DECISIONS_MAX:
                    self._known.clear()
                self._known[key] = found
        return found

    def is_superuser(self, name: str, groups: frozenset[str]) -> bool:
        return not self.superusers.isdisjoint(_meant(name, groups))

    def who_can(self, action: Action, target: Target) -> list[tuple[str, Decision]]:
        """Every principal that rules or the configuration name, and what holds for it alone.

        A name is decided without groups and a group without a name: what one allows, a rule about
        the other may still deny.
        """
        rules = (*self.rules, *self.grants)
        named = {rule.principal for rule in rules if rule.action is action} | self.superusers
        return [
            (one, self._decide(frozenset((one, EVERYBODY)), action, target))
            for one in sorted(named | {EVERYBODY})
        ]

    def _decide(self, meant: frozenset[str], action: Action, target: Target) -> Decision:
        if not self.superusers.isdisjoint(meant):
            return Decision(allowed=True, superuser=True)
        denying = _first(_denying(self._books[Effect.DENY, action], target), meant)
        if denying is not None:
            return Decision(allowed=False, rule=denying)
        allowing = _allowing(self._books[Effect.ALLOW, action], action, target, meant)
        granted = allowing in self._granted
        return Decision(allowed=allowing is not None, rule=allowing, granted=granted)


def check_rule(rule: AclRule) -> None:
    """Check that a rule means something.

    Raises:
        RefusedError: `BAD_RULE`, with the reason.
    """
    check_principal(rule.principal)
    resource = rule.resource
    if resource == EVERYTHING:
        return
    if resource.startswith(SUBJECT):
        try:
            check_filter(resource.removeprefix(SUBJECT))
        except RefusedError as error:
            raise _bad(f"resource {resource[:80]!r}: {error}") from None
    elif not _NAME.fullmatch(resource) or len(resource) > STREAM_NAME_LENGTH_MAX:
        message = "a stream's name, the beginning of some and *, subject:FILTER, or *"
        raise _bad(f"resource {resource[:80]!r}: {message}")
    elif rule.action is Action.CREATE and rule.effect is Effect.ALLOW:
        message = "what a stream stores is not seen from its name; allow create on subject:FILTER"
        raise _bad(f"resource {resource!r}: {message}")


def check_principal(principal: str) -> None:
    """Check how a rule or a quota names whom it means.

    Raises:
        RefusedError: `BAD_RULE`.
    """
    name = principal.removeprefix(GROUP)
    if not name.strip() or len(principal) > PRINCIPAL_LENGTH_MAX or _CONTROLS.search(name):
        message = f"1 to {PRINCIPAL_LENGTH_MAX} characters, none of them a control"
        raise _bad(f"principal {principal[:80]!r}: {message}")
    if principal == f"{GROUP}*":
        raise _bad(f"principal {principal!r}: name a group, or * for everybody")


def _length(target: Target) -> int:
    """Return the characters of a target's name, and of what its stream stores."""
    match target:
        case OnStream(name, filters, only):
            return len(name) + sum(map(len, filters)) + len(only or "")
        case OnSubject(subject):
            return len(subject)
        case OnCluster():
            return 0


def _meant(name: str, groups: Iterable[str]) -> frozenset[str]:
    """Return the names that rules use for a principal. No rule means a name like a group's."""
    itself = () if name == EVERYBODY or name.startswith(GROUP) else (name,)
    return frozenset((EVERYBODY, *itself, *(f"{GROUP}{group}" for group in groups)))


def _first(rules: Iterable[AclRule], meant: frozenset[str]) -> AclRule | None:
    return next((rule for rule in rules if rule.principal in meant), None)


def _denying(book: _Book, target: Target) -> Iterator[AclRule]:
    """The rules that a target has anything to do with."""
    yield from book.everything
    match target:
        case OnStream(name, filters, only):
            yield from book.named(name)
            for one in filters:
                for rule in book.touching(one):
                    if only is None or overlaps(rule.resource.removeprefix(SUBJECT), only):
                        yield rule
        case OnSubject(subject, streams):
            yield from book.touching(subject)
            for stream in streams:
                yield from book.named(stream)
        case OnCluster():
            pass


def _allowing(book: _Book, action: Action, target: Target, meant: frozenset[str]) -> AclRule | None:
    """A rule by which all of a target is allowed, or the first of several; None: not all of it."""
    found = _first(book.everything, meant)
    match target:
        case OnStream(name):
            at_all = None if is_internal(name) else found
            by_name = None if action is Action.CREATE else _first(book.named(name), meant)
            return at_all or by_name or _allowing_all(book, target, meant)
        case OnSubject(subject, streams):
            by_subject = found or _first(book.covering(subject), meant)
            if by_subject is not None or action is Action.CREATE:
                return by_subject
            return _all(_first(book.named(stream), meant) for stream in streams)
        case OnCluster():
            return found


def _allowing_all(book: _Book, target: OnStream, meant: frozenset[str]) -> AclRule | None:
    """A rule on all that a stream stores, or on just what is wanted of it."""
    if target.only is not None and target.filters:
        narrow = _first(book.covering(target.only), meant)
        if narrow is not None:
            return narrow
    return _all(_first(book.covering(one), meant) for one in target.filters)


def _all(rules: Iterable[AclRule | None]) -> AclRule | None:
    """The first of them, if each is there and there is any."""
    found = list(rules)
    return None if None in found or not found else found[0]


def _bad(message: str) -> RefusedError:
    return RefusedError("BAD_RULE", message)


INBOXES: Final = "_INBOX.>"
"""Subjects of publishers' acks; a client of nats-server must be able to subscribe there."""

_NOBODYS: Final = (INBOXES, "_PENSTOCK.>", "$JS.>", "$SYS.>")
"""Subjects that are denied to a user who may publish anything: acks could be forged there, and
servers be given commands. No stream stores them."""

_VARIABLE: Final = re.compile(r"[^A-Z0-9]+")
_DIRECTIONS: Final = {"publish": Action.PUBLISH, "subscribe": Action.READ}


class NatsUser(Struct, frozen=True):
    """Permissions of one user.

    Attributes:
        name: The user's name; `*`: users that are not named.
        publish_allow, publish_deny, subscribe_allow, subscribe_deny: Subjects.
    """

    name: str
    publish_allow: tuple[str, ...]
    publish_deny: tuple[str, ...]
    subscribe_allow: tuple[str, ...]
    subscribe_deny: tuple[str, ...]


def nats_users(rules: Iterable[AclRule], streams: Mapping[str, Sequence[str]]) -> list[NatsUser]:
    """Return the permissions of each named principal, and of all others.

    Args:
        rules: Rules; those about groups are skipped.
        streams: The subjects that each stream stores.
    """
    known = [rule for rule in rules if not rule.principal.startswith(GROUP)]
    names = sorted({rule.principal for rule in known} | {EVERYBODY})
    return [_user(name, known, streams) for name in names]


def nats_configuration(users: Sequence[NatsUser], *, logd_user: str) -> str:
    """The users, and logd's own, as a block of nats-server's configuration.

    Passwords are taken from its environment; with certificates (`verify_and_map`) leave them out.
    """
    lines = ["authorization {"]
    others = (user for user in users if user.name == EVERYBODY)
    lines += [f"  default_permissions: {_permissions(user, '  ')}" for user in others]
    lines.append("  users: [")
    variables: dict[str, int] = {}
    own = _variable(logd_user, variables)
    lines.append(f"    {{ user: {json.dumps(logd_user)}, password: ${own}")
    lines.append('      permissions: { publish: ">", subscribe: ">" } }')  # not the default
    for user in users:
        if user.name != EVERYBODY:
            variable = _variable(user.name, variables)
            lines.append(f"    {{ user: {json.dumps(user.name)}, password: ${variable}")
            lines.append(f"      permissions: {_permissions(user, '      ')} }}")
    return "\n".join([*lines, "  ]", "}", ""])


def _user(name: str, rules: Sequence[AclRule], streams: Mapping[str, Sequence[str]]) -> NatsUser:
    mine = [rule for rule in rules if rule.principal in (name, EVERYBODY)]
    found = {
        (direction, effect): _subjects(
            (rule for rule in mine if rule.action is action and rule.effect is effect), streams
        )
        for direction, action in _DIRECTIONS.items()
        for effect in Effect
    }
    allowed, denied = found["publish", Effect.ALLOW], found["publish", Effect.DENY]
    if any(begins_with_wildcard(subject) for subject in allowed):
        denied = tuple(sorted({*denied, *_NOBODYS}))
    return NatsUser(
        name,
        allowed,
        denied,
        (INBOXES, *found["subscribe", Effect.ALLOW]),
        found["subscribe", Effect.DENY],
    )


def _subjects(rules: Iterable[AclRule], streams: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    subjects: set[str] = set()
    for rule in rules:
        if rule.resource == EVERYTHING and rule.effect is Effect.DENY:
            subjects.add(">")
        elif rule.resource.startswith(SUBJECT):
            subjects.add(rule.resource.removeprefix(SUBJECT))
        else:
            meant = [stored for stream, stored in streams.items() if _means(rule.resource, stream)]
            subjects.update(*meant)
    return tuple(sorted(subjects))


def _means(resource: str, stream: str) -> bool:
    if resource == EVERYTHING or not resource.endswith("*"):
        return resource in (EVERYTHING, stream)
    return stream.startswith(resource[:-1])


def _permissions(user: NatsUser, indent: str) -> str:
    lines = ["{"]
    for direction, allow, deny in (
        ("publish", user.publish_allow, user.publish_deny),
        ("subscribe", user.subscribe_allow, user.subscribe_deny),
    ):
        parts = [f"allow: {json.dumps(allow)}"] if allow else []
        refused = deny if allow else (">",)
        parts += [f"deny: {json.dumps(refused)}"] if refused else []
        lines.append(f"{indent}  {direction}: {{ {', '.join(parts)} }}")
    return "\n".join([*lines, f"{indent}}}"])


def _variable(name: str, taken: dict[str, int]) -> str:
    """A name for a password in the environment, one for each user."""
    variable = f"NATS_PASSWORD_{_VARIABLE.sub('_', name.upper()).strip('_')}"
    taken[variable] = number = taken.get(variable, 0) + 1
    return variable if number == 1 else f"{variable}_{number}"
