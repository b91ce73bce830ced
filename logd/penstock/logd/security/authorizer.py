"""Authorization of callers: decisions of the rules on existing streams."""

from collections.abc import Collection, Iterable
from typing import Any, Final

from penstock.logd.cluster.engine import ClusterAccess
from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import check_filter
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.cursors import CURSORS_STREAM
from penstock.logd.security.acl import (
    SUBJECT,
    Acl,
    AclRule,
    Action,
    Decision,
    OnCluster,
    OnStream,
    OnSubject,
    Target,
)
from penstock.logd.security.principal import Principal

CLUSTER: Final = OnCluster()

STATUS: Final = "__status"
"""The name in rules for `/status` and `/metrics`: principals that may `read` it see them."""


class HiddenError(RefusedError):
    """Denial to a caller who may not know that the stream exists; reads as if it did not."""


def result_of(error: RefusedError) -> str:
    """Return the result of a refusal for the activity stream."""
    return "PERMISSION_DENIED" if isinstance(error, HiddenError) else error.code


class Authorizer:
    """Used on the event loop.

    Args:
        access: The rules.
        streams: The streams.
        enabled: Whether they are followed; if not, everybody may everything.
        superusers: Principals of the configuration that may perform every action.
        grants: Rules of the configuration that allow, beside the stored ones.

    Attributes:
        enabled: The argument.
        denied: Number of denials.
    """

    def __init__(
        self,
        access: ClusterAccess,
        streams: ClusterStreams,
        *,
        enabled: bool,
        superusers: Iterable[str] = (),
        grants: Iterable[AclRule] = (),
    ) -> None:
        self.enabled = enabled
        self.denied = 0
        self._access = access
        self._streams = streams
        self._superusers = frozenset(superusers)
        self._grants = tuple(grants)
        self._acl = Acl((), self._superusers, self._grants)
        self._version = 0

    @property
    def acl(self) -> Acl:
        """The rules as they are now.

        Raises:
            NotReadyError: This node does not know them yet.
        """
        table = self._access.table
        if table.version != self._version:
            self._acl = Acl(table.rules.values(), self._superusers, self._grants)
            self._version = table.version
        return self._acl

    def check(self, caller: Principal, action: Action, target: Target) -> None:
        """Refuse what a caller may not do.

        Raises:
            RefusedError: `PERMISSION_DENIED`, naming caller, action, resource and a way out. Of a
                stream that the caller may not know of, as if there were none: `UNKNOWN_STREAM` to
                whom its name alone is allowed.
            NotReadyError: This node does not know yet.
        """
        if self._is_free(caller):
            return
        decision = self.decide(caller, action, target)
        if not decision.allowed:
            self.denied += 1
            raise self._refusal(caller, action, target, decision)

    def allows(self, caller: Principal, action: Action, target: Target) -> bool:
        return self._is_free(caller) or self.decide(caller, action, target).allowed

    def decide(self, caller: Principal, action: Action, target: Target) -> Decision:
        """Return the rules' decision on a caller."""
        name, groups = caller.name, caller.groups
        if caller.is_anonymous and self.acl.is_superuser(name, groups):
            name = ""  # that nobody said who they are makes nobody a superuser
        return self.acl.decide(name, groups, action, target)

    def is_exempt(self, caller: Principal) -> bool:
        """Return whether no quota applies to a caller: nodes and superusers must get through."""
        if caller.is_node:
            return True
        return not caller.is_anonymous and self._superuser(caller)

    def stream(self, name: str, *, only: str | None = None) -> OnStream:
        """A stream as rules see it; of one that is not there the name only."""
        try:
            outline = self._streams.outline(name)
        except RefusedError:
            return OnStream(name)
        return stored_by(outline.stream.config, outline.partitions, only=only)

    def subject(self, subject: str) -> OnSubject:
        """A subject that is published on, with the streams that store it."""
        return OnSubject(subject, tuple(sorted(self._streams.match(subject))))

    def sees(self, caller: Principal, stream: str) -> bool:
        """Return whether a caller may know of a stream: it may perform some action on it.

        All callers may know the stream of cursors, which has their own.
        """
        if self._is_free(caller) or stream == CURSORS_STREAM.name:
            return True
        target = self.stream(stream)
        return any(self.allows(caller, action, target) for action in Action)

    def check_sees(self, caller: Principal, stream: str) -> None:
        """Refuse to speak of a stream, or of whether there is one.

        Raises:
            RefusedError: `PERMISSION_DENIED`.
        """
        if not self.sees(caller, stream):
            self.check(caller, Action.READ, self.stream(stream))

    def check_group(self, caller: Principal, group: str, streams: Collection[str]) -> None:
        """Refuse what concerns a consumer group, and to say whether there is one.

        Args:
            caller: The caller.
            group: The group.
            streams: Streams that it reads; none: it does not exist.

        Raises:
            RefusedError: `PERMISSION_DENIED` or `UNKNOWN_GROUP`, as of one that is not there.
        """
        if not self.enabled or (streams and self._reads_all(caller, streams)):
            return
        self.check(caller, Action.CURSOR, CLUSTER)
        message = f"group {group!r} has no members"
        if streams:
            self.denied += 1
            raise HiddenError("UNKNOWN_GROUP", message, group=group)
        raise RefusedError("UNKNOWN_GROUP", message, group=group)

    def check_joins(self, caller: Principal, group: str, streams: Collection[str]) -> None:
        """Refuse to take a caller into a group that reads what it may not.

        That its name is taken cannot be kept from whom does not get it; what it reads is.

        Raises:
            RefusedError: `PERMISSION_DENIED`.
        """
        if self._reads_all(caller, streams):
            return
        self.denied += 1
        message = f"{caller.name!r} may not be in group {group!r}: take another name"
        raise RefusedError("PERMISSION_DENIED", message, principal=caller.name, action="cursor")

    def _reads_all(self, caller: Principal, streams: Collection[str]) -> bool:
        return all(self.allows(caller, Action.CURSOR, self.stream(one)) for one in streams)

    def visible(self, caller: Principal, streams: Iterable[str]) -> list[str]:
        """Return the streams that a caller may know of."""
        return [stream for stream in streams if self.sees(caller, stream)]

    def resource(self, text: str) -> Target:
        """Parse a resource of a rule.

        Raises:
            RefusedError: `BAD_SUBJECT`.
        """
        if text == "*":
            return CLUSTER
        if text.startswith(SUBJECT):
            subject = text.removeprefix(SUBJECT)
            check_filter(subject)
            wild = {"*", ">"} & set(subject.split("."))
            return OnSubject(subject) if wild else self.subject(subject)
        return self.stream(text)

    def _refusal(
        self, caller: Principal, action: Action, target: Target, decision: Decision
    ) -> RefusedError:
        """Return the refusal to a caller, which must not reveal what exists."""
        if action is Action.CREATE or not isinstance(target, OnStream):
            return _denied(caller, action, target, decision)
        if any(self.allows(caller, other, target) for other in Action):
            return _denied(caller, action, target, decision)
        absent = OnStream(target.name)
        found = self.decide(caller, action, absent)
        if found.allowed:
            message = f"there is no stream {target.name!r}"
            return HiddenError("UNKNOWN_STREAM", message, stream=target.name)
        return _denied(caller, action, absent, found)

    def _is_free(self, caller: Principal) -> bool:
        return not self.enabled or caller.is_node

    def _superuser(self, caller: Principal) -> bool:
        return Acl((), self._superusers).is_superuser(caller.name, caller.groups)


def stored_by(config: StreamConfig, partitions: int, *, only: str | None = None) -> OnStream:
    """A stream as rules see it: partition n stores what is published on its subject with .n."""
    subject = config.subject
    if not subject:
        return OnStream(config.name)
    more = (f"{subject}.*",) if partitions > 1 else ()
    return OnStream(config.name, (subject, *more), only)


def described(document: dict[str, Any]) -> OnStream:
    """A stream as rules see it, from its description."""
    subject, partitions = document["subject"], len(document.get("partitions", ()))
    more = (f"{subject}.*",) if partitions > 1 else ()
    return OnStream(document["name"], (subject, *more) if subject else ())


def shown(target: Target) -> str:
    """Return the target as a rule names it."""
    match target:
        case OnStream(name):
            return name
        case OnSubject(subject):
            return f"{SUBJECT}{subject}"
        case OnCluster():
            return "*"


def _denied(caller: Principal, action: Action, target: Target, decision: Decision) -> RefusedError:
    name, resource = caller.name, shown(target)
    if decision.rule is not None:
        way = f"penstock logd acl rm {decision.rule.id}"
        why = f"rule {decision.rule.id} denies it; without that rule"
    else:
        if action is Action.CREATE and isinstance(target, OnStream) and target.filters:
            resource = f"{SUBJECT}{target.filters[-1]}"
        way = f"penstock logd acl add allow '{name}' {action} '{resource}'"
        why = "no rule allows it; with one"
    message = f"{name!r} may not {action} {resource!r}: {why} it may: {way}"
    return RefusedError(
        "PERMISSION_DENIED", message, principal=name, action=str(action), resource=resource
    )
