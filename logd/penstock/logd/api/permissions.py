"""What a caller must be allowed for each request, and what it is shown of an answer.

Whatever asks for something that is not listed here must be allowed `admin` on everything: a request
that is new is closed until somebody says whose it is.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.logd.api.operations import Groups
from penstock.logd.api.protocol import Document
from penstock.logd.api.stream_options import split_settings
from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import check_filter
from penstock.logd.partition.cursors import CURSORS_STREAM
from penstock.logd.security.acl import Action
from penstock.logd.security.authorizer import CLUSTER, Authorizer, described, stored_by
from penstock.logd.security.principal import Principal

_ON_STREAM: Final = {
    "offsets": Action.READ,
    "delete_stream": Action.DELETE,
    "purge": Action.DELETE,
    "open_stream": Action.ALTER,
    "alter_stream": Action.ALTER,
    "set_mode": Action.ALTER,
    "get_cursor": Action.CURSOR,
    "delete_cursor": Action.CURSOR,
    "move": Action.ADMIN,
    "observe": Action.ADMIN,
    "elect": Action.ADMIN,
    "restore": Action.ADMIN,
}
_FILTERED: Final = ("cluster", "match", "groups", "gaps")
"""Requests that everybody may make; the answers have what the caller may see."""

_HIDDEN: Final = {"rack": "", "admin": ""}
"""What only those see of a node who administer."""

_Check = Callable[[Document, Principal], None]
_View = Callable[[Document, Principal], Document]


class AuthorizationRules:
    """Asked before a request, and after it.

    Args:
        authorizer: Decides.
        groups: Which streams a consumer group reads.
    """

    def __init__(self, authorizer: Authorizer, groups: Groups) -> None:
        self._authorizer = authorizer
        self._groups = groups
        self._checks: dict[str, _Check] = {
            "fetch": self._fetch,
            "streams": self._streams,
            "create_stream": self._create,
            "set_cursor": self._set_cursor,
            "list_cursors": self._list_cursors,
            "group_beat": self._group_beat,
            "group_leave": self._group_leave,
            "groups": self._named_group,
            "test_acl": self._test,
        }
        self._views: dict[str, _View] = {
            "streams": self._show_streams,
            "match": self._show_names,
            "list_cursors": self._show_cursors,
            "groups": self._show_groups,
            "cluster": self._show_nodes,
            "gaps": self._show_gaps,
        }

    def check(self, request: Document, caller: Principal) -> None:
        """Refuse what the caller may not ask for.

        Raises:
            RefusedError: `PERMISSION_DENIED`; `BAD_REQUEST`, `BAD_SUBJECT`: it does not say what
                about.
            NotReadyError: This node does not know yet.
        """
        if not self._authorizer.enabled:
            return
        api = request["api"]
        check = self._checks.get(api)
        if check is not None:
            check(request, caller)
        elif api in _ON_STREAM:
            stream = self._authorizer.stream(_text(request, "stream"))
            self._authorizer.check(caller, _ON_STREAM[api], stream)
        elif api not in _FILTERED:
            self._authorizer.check(caller, Action.ADMIN, CLUSTER)

    def show(self, api: str, answer: Document, caller: Principal) -> Document:
        """What of an answer the caller may see."""
        show = self._views.get(api) if self._authorizer.enabled else None
        return answer if show is None else answer | show(answer, caller)

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

    def _show_gaps(self, answer: Document, caller: Principal) -> Document:
        """Those of what the caller sees; a partition of a stream is written `stream/1`."""
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

    def _fetch(self, request: Document, caller: Principal) -> None:
        only = request.get("subject")
        only = only if isinstance(only, str) else None
        if only is not None:
            check_filter(only)
        target = self._authorizer.stream(_text(request, "stream"), only=only)
        self._authorizer.check(caller, Action.READ, target)

    def _streams(self, request: Document, caller: Principal) -> None:
        if request.get("stream") is not None:
            self._authorizer.check_sees(caller, _text(request, "stream"))

    def _create(self, request: Document, caller: Principal) -> None:
        settings = request.get("config")
        config, replication = split_settings(settings if isinstance(settings, dict) else {})
        target = stored_by(config, replication.partitions)
        self._authorizer.check(caller, Action.CREATE, target)

    def _set_cursor(self, request: Document, caller: Principal) -> None:
        self._cursors(caller, (_text(one, "stream") for one in _objects(request, "cursors")))

    def _list_cursors(self, request: Document, caller: Principal) -> None:
        if request.get("stream") is not None:
            self._cursors(caller, [_text(request, "stream")])

    def _group_beat(self, request: Document, caller: Principal) -> None:
        named = request.get("streams")
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise RefusedError("BAD_REQUEST", "streams: a list of names", key="streams")
        held = [_text(one, "stream") for one in _objects(request, "held")]
        self._cursors(caller, {*named, *held})
        group = _text(request, "group")
        self._authorizer.check_joins(caller, group, self._streams_of(group))

    def _group_leave(self, request: Document, caller: Principal) -> None:
        group = _text(request, "group")
        self._authorizer.check_group(caller, group, self._streams_of(group))

    def _named_group(self, request: Document, caller: Principal) -> None:
        if request.get("group") is not None:
            streams = self._streams_of(_text(request, "group"))
            if not self._authorizer.visible(caller, streams):
                self._authorizer.check(caller, Action.CURSOR, CLUSTER)

    def _test(self, request: Document, caller: Principal) -> None:
        """Everybody may ask what they may do themselves."""
        if request.get("principal") is not None:
            self._authorizer.check(caller, Action.ADMIN, CLUSTER)

    def _cursors(self, caller: Principal, streams: Iterable[str]) -> None:
        for stream in streams:
            self._authorizer.check(caller, Action.CURSOR, self._authorizer.stream(stream))

    def _streams_of(self, group: str) -> list[str]:
        """The streams of a group as it is now: whoever joins it takes a part of them away."""
        try:
            (found,) = self._groups.describe(group)
        except RefusedError:
            return []
        return sorted({stream for member in found["members"] for stream in member["streams"]})

    def _sees(self, caller: Principal, description: Document) -> bool:
        """As `Authorizer.sees`, without looking the stream up: a listing may have ten thousand."""
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


def _text(document: Document, key: str) -> str:
    value: Any = document.get(key)
    if not isinstance(value, str):
        raise RefusedError("BAD_REQUEST", f"{key}: a text", key=key)
    return value


def _objects(document: Document, key: str) -> list[Document]:
    value: Any = document.get(key)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise RefusedError("BAD_REQUEST", f"{key}: a list of objects", key=key)
    return value
