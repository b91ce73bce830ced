"""How far the sequences of an earlier run can be believed: for records that were sorted the same.

"Done up to sequence s" is said of a lane, and speaks of the records that were sorted into it then.
Read again and sorted otherwise, a record that was another lane's and is not delivered may come into
this one below s, where both the lane and logd take it for a repeat. So what was said of records
that something else sorted, or something that may judge otherwise the next time, is not believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FILE_ORIGIN: Final = "file/"
"""What the names of origins begin with that are generations of files."""


@dataclass(frozen=True, slots=True)
class RouteFingerprint:
    """Digests of what decides the lane of a record; "" where it may be another the next time.

    Attributes:
        spools: For what is spooled, which is the same bytes whenever it is read.
        files: For lines of files, whose names and times of reading are not.
    """

    spools: str = ""
    files: str = ""

    def of(self, origin: str) -> str:
        """Those for an origin."""
        return self.files if origin.startswith(FILE_ORIGIN) else self.spools

    def are_those_of(self, other: "RouteFingerprint", origin: str) -> bool:
        """Whether both sort the records of an origin into the same lanes."""
        return self.of(origin) != "" and self.of(origin) == other.of(origin)


UNKNOWN: Final = RouteFingerprint()
"""Those of a checkpoint that names none, and while others take over."""


@dataclass(frozen=True, slots=True)
class RoutingState:
    """By what the records were sorted that may be read again.

    Attributes:
        since: By origin, the position before which other rules may have sorted; none: no such.
    """

    rules: RouteFingerprint = UNKNOWN
    since: Mapping[str, int] = field(default_factory=dict)

    def holds(self, origin: str, position: int, rules: RouteFingerprint) -> bool:
        """Whether what is read again from a position on is sorted by `rules` as it was before."""
        return rules.are_those_of(self.rules, origin) and position >= self.since.get(origin, 0)

    def changed(self, rules: RouteFingerprint, reached: Mapping[str, int]) -> "RoutingState":
        """Others hold from now on; `reached`: by origin, what was not begun to be sorted."""
        others = {
            origin: position
            for origin, position in reached.items()
            if not rules.are_those_of(self.rules, origin)
        }
        return RoutingState(rules, {**self.since, **others})

    def after(self, cursors: Mapping[str, int]) -> "RoutingState":
        """What of it is worth keeping: nothing before the cursors is read again."""
        since = {
            origin: position
            for origin, position in self.since.items()
            if cursors.get(origin, position) < position
        }
        return RoutingState(self.rules, since)

    def as_document(self) -> dict[str, object]:
        """For the checkpoint."""
        return {"rules": [self.rules.spools, self.rules.files], "since": dict(self.since)}


def read_routing_state(document: Mapping[str, Any]) -> RoutingState:
    """What `as_document` gave; nothing is known by anything else, as another version writes it."""
    match document.get("rules"), document.get("since"):
        case [str(spools), str(files)], dict(since) if all(
            type(at) is int for at in since.values()
        ):
            return RoutingState(RouteFingerprint(spools, files), since)
        case _:
            return RoutingState()
