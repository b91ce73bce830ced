"""What the collector keeps in its data directory besides the spool: one checkpoint.

    {"version": 1,
     "incarnation": "<uuid>",             made with the directory; part of every producer id
     "cursor": 17,                        spool offset before which everything is done
     "urgent_cursor": 4,                  the same of the spool of audit and event records
     "replayed": 2,                       quarantine offset before which every replay was spooled
     "senders": {"<id>": 42},             last batch taken, per Unix-socket sender
     "urgent_senders": {"<id>": 41},      the same into the spool of audit and event records
     "lanes": [["spool", "app", "telemetry.logs.shop", 1048577]],   done up to this sequence
     "files": [{...}],                    see `penstock.collector.core.files`
     "marks": {"1": [900, 17638700000000, 17, 17, "<hash>"]},   of files, by generation; may lack
     "next_generation": 3,
     "sources": ["files"]}                file sources that ran before

It is replaced as a whole. An old one is safe: what it has forgotten is read again, and logd knows
it already. A new one is durable before any segment of the spool that it passes is deleted.
"""

from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

from penstock.collector.core.batch import LaneKey
from penstock.collector.core.files import FileState, read_mark

VERSION: Final = 1
SPOOL_ORIGIN: Final = "spool"
URGENT_ORIGIN: Final = "spool-urgent"
SPOOL_ORIGINS: Final = (SPOOL_ORIGIN, URGENT_ORIGIN)
INDEX_BITS: Final = 20
"""Low bits of a spool lane's sequence that count records within a unit."""


class NewerStateError(Exception):
    """A later version wrote the checkpoint."""


@dataclass(slots=True)
class State:
    """The checkpoint's content."""

    incarnation: UUID = field(default_factory=uuid4)
    cursor: int = 0
    urgent_cursor: int = 0
    replayed: int = 0
    senders: dict[str, int] = field(default_factory=dict)
    urgent_senders: dict[str, int] = field(default_factory=dict)
    lanes: dict[LaneKey, int] = field(default_factory=dict)
    files: list[FileState] = field(default_factory=list)
    next_generation: int = 1
    sources: list[str] = field(default_factory=list)

    def cursor_of(self, origin: str) -> int:
        """Of one of the spools."""
        return self.urgent_cursor if origin == URGENT_ORIGIN else self.cursor

    def fit_to_spool(
        self, start_offset: int, end_offset: int, urgent: tuple[int, int] = (0, 0)
    ) -> bool:
        """Adapt to the spools that were found; `urgent` is where the other one starts and ends.

            cursor         spool        action
            below start    any          begin at its start: what lies before is gone
            within         any          go on
            beyond its end lost or old  begin at its start under a new incarnation, because its
                                        offsets, and so its sequences, come a second time

        Returns:
            Whether one of them is not the one that the checkpoint was written for.
        """
        self._forget_lost_files()
        found = {SPOOL_ORIGIN: (start_offset, end_offset), URGENT_ORIGIN: urgent}
        foreign = {origin for origin, (_, end) in found.items() if self._is_beyond(origin, end)}
        if foreign:
            self.incarnation = uuid4()
            self.lanes = {key: n for key, n in self.lanes.items() if key.origin not in foreign}
        begin = {
            origin: start if origin in foreign else max(self.cursor_of(origin), start)
            for origin, (start, _) in found.items()
        }
        self.cursor, self.urgent_cursor = begin[SPOOL_ORIGIN], begin[URGENT_ORIGIN]
        return bool(foreign)

    def _is_beyond(self, origin: str, end_offset: int) -> bool:
        spooled = [n for key, n in self.lanes.items() if key.origin == origin]
        last_unit = (max(spooled, default=0) - 1) >> INDEX_BITS
        return max(self.cursor_of(origin), last_unit + 1) > end_offset

    def _forget_lost_files(self) -> None:
        """Drop lanes of generations that are not read any more."""
        origins = {*SPOOL_ORIGINS, *(state.origin for state in self.files)}
        self.lanes = {key: n for key, n in self.lanes.items() if key.origin in origins}

    def as_document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "version": VERSION,
            "incarnation": str(self.incarnation),
            "cursor": self.cursor,
            "urgent_cursor": self.urgent_cursor,
            "replayed": self.replayed,
            "senders": self.senders,
            "urgent_senders": self.urgent_senders,
            "lanes": [
                [*key[:3], sequence, *([key.branch] if key.branch else [])]
                for key, sequence in self.lanes.items()
            ],
            "files": [state.as_dict() for state in self.files],
            "marks": {
                str(state.generation): state.mark.as_list()
                for state in self.files
                if state.mark is not None
            },
            "next_generation": self.next_generation,
            "sources": self.sources,
        }


def read_state(document: dict[str, Any]) -> State:
    """Read a checkpoint's JSON.

    Raises:
        NewerStateError: It was written by a later version.
    """
    if document["version"] != VERSION:
        msg = f"checkpoint version {document['version']} is not known; this one reads {VERSION}"
        raise NewerStateError(msg)
    files = [FileState(**state) for state in document["files"]]
    marks = document.get("marks")
    for state in files:
        known = marks.get(str(state.generation)) if isinstance(marks, dict) else None
        state.mark = read_mark(known)
    return State(
        incarnation=UUID(document["incarnation"]),
        cursor=document["cursor"],
        urgent_cursor=document.get("urgent_cursor", 0),
        replayed=document.get("replayed", 0),
        senders=document["senders"],
        urgent_senders=document.get("urgent_senders", {}),
        lanes={
            LaneKey(origin, source, subject, *branch): sequence
            for origin, source, subject, sequence, *branch in document["lanes"]
        },
        files=files,
        next_generation=document["next_generation"],
        sources=document["sources"],
    )
