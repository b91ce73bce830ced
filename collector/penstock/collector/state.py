"""What the collector keeps in its data directory besides the spool: one checkpoint.

    {"version": 1,
     "incarnation": "<uuid>",             made with the directory; part of every producer id
     "cursor": 17,                        spool offset before which everything is done
     "senders": {"<id>": 42},             last batch taken, per Unix-socket sender
     "lanes": [["spool", "app", "telemetry.logs.shop", 1048577]],   done up to this sequence
     "files": [{...}],                    see `penstock.collector.core.files`
     "next_generation": 3,
     "sources": ["files"]}                file sources that ran before

It is replaced as a whole. An old one is safe: what it has forgotten is read again, and logd knows
it already. A new one is durable before any segment of the spool that it passes is deleted.
"""

from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

from penstock.collector.core.batch import LaneKey
from penstock.collector.core.files import FileState

VERSION: Final = 1
SPOOL_ORIGIN: Final = "spool"
INDEX_BITS: Final = 20
"""Low bits of a spool lane's sequence that count records within a unit."""


@dataclass(slots=True)
class State:
    """The checkpoint's content."""

    incarnation: UUID = field(default_factory=uuid4)
    cursor: int = 0
    senders: dict[str, int] = field(default_factory=dict)
    lanes: dict[LaneKey, int] = field(default_factory=dict)
    files: list[FileState] = field(default_factory=list)
    next_generation: int = 1
    sources: list[str] = field(default_factory=list)

    def fit_to_spool(self, start_offset: int, end_offset: int) -> bool:
        """Adapt to the spool that was found.

            cursor         spool        action
            below start    any          begin at its start: what lies before is gone
            within         any          go on
            beyond its end lost or old  begin at its start under a new incarnation, because its
                                        offsets, and so its sequences, come a second time

        Returns:
            Whether the spool is not the one that the checkpoint was written for.
        """
        self._forget_lost_files()
        spooled = [n for key, n in self.lanes.items() if key.origin == SPOOL_ORIGIN]
        last_unit = (max(spooled, default=0) - 1) >> INDEX_BITS
        foreign = max(self.cursor, last_unit + 1) > end_offset
        if foreign:
            self.incarnation = uuid4()
            self.lanes = {key: n for key, n in self.lanes.items() if key.origin != SPOOL_ORIGIN}
            self.cursor = start_offset
        self.cursor = max(self.cursor, start_offset)
        return foreign

    def _forget_lost_files(self) -> None:
        """Drop lanes of generations that are not read any more."""
        origins = {SPOOL_ORIGIN, *(state.origin for state in self.files)}
        self.lanes = {key: n for key, n in self.lanes.items() if key.origin in origins}

    def as_document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "version": VERSION,
            "incarnation": str(self.incarnation),
            "cursor": self.cursor,
            "senders": self.senders,
            "lanes": [[*key, sequence] for key, sequence in self.lanes.items()],
            "files": [state.as_dict() for state in self.files],
            "next_generation": self.next_generation,
            "sources": self.sources,
        }


def read_state(document: dict[str, Any]) -> State:
    """Read a checkpoint's JSON.

    Raises:
        ValueError: It was written by a later version.
    """
    if document["version"] != VERSION:
        msg = f"checkpoint version {document['version']} is not known"
        raise ValueError(msg)
    return State(
        incarnation=UUID(document["incarnation"]),
        cursor=document["cursor"],
        senders=document["senders"],
        lanes={
            LaneKey(origin, source, subject): sequence
            for origin, source, subject, sequence in document["lanes"]
        },
        files=[FileState(**state) for state in document["files"]],
        next_generation=document["next_generation"],
        sources=document["sources"],
    )
