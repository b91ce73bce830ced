"""Authorization of operations, and of the parts of their answers, by the table.

An operation that is not in the table is for administrators: who may not administer learns nothing
of what there is.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.logd.api.operations import (
    OPERATIONS,
    Document,
    On,
    Operation,
    Request,
    Shows,
    operation_of,
)
from penstock.logd.cluster.engine import ClusterGroups
from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import check_filter
from penstock.logd.partition.cursors import CURSORS_STREAM
from penstock.logd.security.acl import Action
from penstock.logd.security.authorizer import CLUSTER, Authorizer, described, stored_by
from penstock.logd.security.principal import Principal
from penstock.logd.stream_options import split_settings

_HIDDEN: Final = {"rack": "", "admin": ""}
"""Values that replace fields of a node for callers who are no administrators."""

_Check = Callable[[Any, Principal, Action], None]
_View = Callable[[Document, Principal], Document]


class AuthorizationRules:
    """Asked before a request, and after it.

    Args:
        authorizer: Decides.
        groups: Consumer groups, for the streams that they read.
    """

    def __init__(self, authorizer: Authorizer, groups: ClusterGroups) -> None:
        self._authorizer = authorizer
        self._groups = groups
        self._checks: dict[On, _Check] = {
            On.NOTHING: lambda *_: None,
            On.CLUSTER: lambda _, caller, __: self._administers(caller),
            On.CLUSTER_FOR_OTHERS: self._check_others,
            On.STREAM: self._check_stream,
            On.SUBJECT: self._check_subject,
            On.NEW_STREAM: self._check_new_stream,
            On.NAMED_STREAM: self._check_named_stream,
            On.CURSORS: self._check_cursors,
            On.GROUP: self._check_group,
            On.JOINED_GROUP: self._check_joined_group,
            On.VISIBLE_STREAM: self._check_visible_stream,
            On.VISIBLE_GROUP: self._check_visible_group,
        }
        assert self._checks.keys() == set(On)
        self._views: dict[Shows, _View] = {
            Shows.ALL: lambda *_: {},
            Shows.STREAMS: self._show_streams,
            Shows.NAMES: self._show_names,
            Shows.CURSORS: self._show_cursors,
            Shows.GROUPS: self._show_groups,
            Shows.NODES: self._show_nodes,
            Shows.GAPS: self._show_gaps,
        }
        assert self._views.keys() == set(Shows)

    def admit(self, document: Document, caller: Principal) -> tuple[Operation, Request]:
        """The operation that a caller asks for, which it may, and the request.

        Raises:
            RefusedError: `PERMISSION_DENIED`; `UNKNOWN_API`, `BAD_REQUEST`, `BAD_SUBJECT`: it does
                not say what about.
            NotReadyError: This node does not know yet.
        """
        operation = OPERATIONS.get(document["api"])
        if operation is None or operation.right.on is On.CLUSTER:
            self._administers(caller)  # before anything is said of the request
        if operation is None:
            message = f"there is no api {document['api']!r}; known: {', '.join(OPERATIONS)}"
            raise RefusedError("UNKNOWN_API", message)
        request = operation.read(document)
        self.check(request, caller)
        return operation, request

    def check(self, request: Request, caller: Principal) -> None:
        """Refuse what the caller may not ask for.

        Raises:
            RefusedError: `PERMISSION_DENIED`, or what is wrong with what the request is about.
            NotReadyError: This node does not know yet.
        """
        if self._authorizer.enabled:
            right = operation_of(request).right
            self._checks[right.on](request, caller, right.action or Action.READ)

    def show(self, operation: Operation, answer: Document, caller: Principal) -> Document:
        """Return the parts of an answer that the caller may see."""
        if not self._authorizer.enabled:
            return answer
        return answer | self._views[operation.shows](answer, caller)

    # Rights.

    def _administers(self, caller: Principal) -> None:
        if self._authorizer.enabled:
            self._authorizer.check(caller, Action.ADMIN, CLUSTER)

    def _check_streams(self, caller: Principal, action: Action, streams: Iterable[str]) -> None:
        for stream in streams:
            self._authorizer.check(caller, action, self._authorizer.stream(stream))

    def _check_others(self, request: Any, caller: Principal, _: Action) -> None:
        if request.principal is not None:
            self._administers(caller)

    def _check_stream(self, request: Any, caller: Principal, action: Action) -> None:
        self._check_streams(caller, action, [request.stream])

    def _check_subject(self, request: Any, caller: Principal, action: Action) -> None:
        if request.subject is not None:
            check_filter(request.subject)
        target = self._authorizer.stream(request.stream, only=request.subject)
        self._authorizer.check(caller, action, target)

    def _check_new_stream(self, request: Any, caller: Principal, action: Action) -> None:
        config, replication = split_settings(request.config)
        self._authorizer.check(caller, action, stored_by(config, replication.partitions))

    def _check_named_stream(self, request: Any, caller: Principal, action: Action) -> None:
        if request.stream is not None:
            self._check_streams(caller, action, [request.stream])

    def _check_cursors(self, request: Any, caller: Principal, action: Action) -> None:
        self._check_streams(caller, action, (one.stream for one in request.cursors))

    def _check_group(self, request: Any, caller: Principal, _: Action) -> None:
        streams = self._streams_of(request.group)
        self._authorizer.check_group(caller, request.group, streams)

    def _check_joined_group(self, request: Any, caller: Principal, action: Action) -> None:
        held = [one.stream for one in request.held]
        self._check_streams(caller, action, dict.fromkeys([*request.streams, *held]))
        streams = self._streams_of(request.group)
        self._authorizer.check_joins(caller, request.group, streams)

    def _check_visible_stream(self, request: Any, caller: Principal, _: Action) -> None:
        if request.stream is not None:
            self._authorizer.check_sees(caller, request.stream)

    def _check_visible_group(self, request: Any, caller: Principal, _: Action) -> None:
        if request.group is not None:
            streams = self._streams_of(request.group)
            if not self._authorizer.visible(caller, streams):
                self._authorizer.check(caller, Action.CURSOR, CLUSTER)

    def _streams_of(self, group: str) -> list[str]:
        """The streams of a group as it is now: a client that joins it takes a part of them away."""
        try:
            (found,) = self._groups.describe(group)
        except RefusedError:
            return []
        return sorted({stream for member in found["members"] for stream in member["streams"]})

    # Views.

    def _show_streams(self, answer: Document, caller: Principal) -> Document:
        return {"streams": [one for one in answer["streams"] if self._sees(caller, one)]}

    def _show_names(self, answer: Document, caller: Principal) -> Document:
        return {"streams": self._authorizer.visible(caller, answer["streams"])}

    def _show_cursors(self, answer: Document, caller: Principal) -> Document:
        found = answer["cursors"]
        return {"cursors": [one for one in found if self._may_commit(caller, one["stream"])]}

    def _show_groups(self, answer: Document, caller: Principal) -> Document:
        shown = (self._group(one, caller) for one in answer["groups"])
        return {"groups": [one for one in shown if one is not None]}

    def _show_nodes(self, answer: Document, caller: Principal) -> Document:
        if self._authorizer.allows(caller, Action.ADMIN, CLUSTER):
            return {}
        return {"nodes": [node | _HIDDEN for node in answer["nodes"]]}

    def _sees(self, caller: Principal, description: Document) -> bool:
        """Return whether the caller may see a stream, by its description, without a lookup."""
        if description["name"] == CURSORS_STREAM.name:
            return True
        target = described(description)
        return any(self._authorizer.allows(caller, action, target) for action in Action)

    def _may_commit(self, caller: Principal, stream: str) -> bool:
        return self._authorizer.allows(caller, Action.CURSOR, self._authorizer.stream(stream))

    def _group(self, group: Document, caller: Principal) -> Document | None:
        """A group with what may be seen of it; None: nothing."""
        members = [
            member | {"streams": self._authorizer.visible(caller, member["streams"])}
            for member in group["members"]
        ]
        visible = {stream for member in members for stream in member["streams"]}
        if not visible:
            return None
        kept = [one for one in group["partitions"] if one["stream"] in visible]
        return group | {
            "members": [member for member in members if member["streams"]],
            "partitions": kept,
        }

    def _show_gaps(self, answer: Document, caller: Principal) -> Document:
        """Return the gaps that the caller may see; a partition is written `stream/1`."""
        shown: Document = {}
        for when in ("lasting", "ended"):
            kept = []
            for gap in answer[when]:
                seen = [
                    one
                    for one in gap["streams"]
                    if self._authorizer.sees(caller, one.partition("/")[0])
                ]
                if seen:
                    whole = len(seen) == len(gap["streams"])
                    count = gap["stream_count"] if whole else len(seen)
                    kept.append(gap | {"streams": seen, "stream_count": count})
            shown[when] = kept
        found = answer["damaged"]
        shown["damaged"] = [one for one in found if self._authorizer.sees(caller, one["stream"])]
        return shown
