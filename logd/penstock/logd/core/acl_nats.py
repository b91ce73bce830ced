"""Rules as nats-server's permissions: what logd cannot enforce where it is not asked.

nats-server knows subjects only, and users instead of principals: a rule about streams becomes one
about the subjects that they store as they are now, a rule about everybody is part of every user's
and the default, and one about a group cannot be said. Its matching is ours: what is published must
match a subject that is allowed and none that is denied.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.logd.core.acl import EVERYBODY, EVERYTHING, GROUP, SUBJECT, AclRule, Action, Effect
from penstock.logd.core.subjects import begins_with_wildcard

INBOXES: Final = "_INBOX.>"
"""Where publishers get their acks; a client of nats-server must be able to listen there."""

_NOBODYS: Final = (INBOXES, "_PENSTOCK.>", "$JS.>", "$SYS.>")
"""Where a user may not publish who may publish anything: acks could be forged there, and servers
be told something. No stream stores them."""

_VARIABLE: Final = re.compile(r"[^A-Z0-9]+")
_DIRECTIONS: Final = {"publish": Action.PUBLISH, "subscribe": Action.READ}


@dataclass(frozen=True, slots=True)
class NatsUser:
    """What one user may do.

    Attributes:
        name: Of the user; `*`: of those that are not named.
        publish_allow, publish_deny, subscribe_allow, subscribe_deny: Subjects.
    """

    name: str
    publish_allow: tuple[str, ...]
    publish_deny: tuple[str, ...]
    subscribe_allow: tuple[str, ...]
    subscribe_deny: tuple[str, ...]


def nats_users(rules: Iterable[AclRule], streams: Mapping[str, Sequence[str]]) -> list[NatsUser]:
    """What rules come to, for each principal that has a name, and for everybody else.

    Args:
        rules: Those about groups are passed over.
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
    """A name for a password in the environment, of its own for each user."""
    variable = f"NATS_PASSWORD_{_VARIABLE.sub('_', name.upper()).strip('_')}"
    taken[variable] = number = taken.get(variable, 0) + 1
    return variable if number == 1 else f"{variable}_{number}"
