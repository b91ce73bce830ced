"""The checkpoint: all that the collector keeps in its data directory besides the spool.

    {"version": 1,
     "incarnation": "<uuid>",             made with the directory; part of every producer id
     "cursor": 17,                        spool offset before which everything is done
     "urgent_cursor": 4,                  the same of the spool of audit and event records
     "replayed": 2,                       quarantine offset before which every replay was spooled
     "senders": {"<id>": 42},             last batch taken, per Unix-socket sender
     "urgent_senders": {"<id>": 41},      the same into the spool of audit and event records
     "lanes": [["spool", "app", "telemetry.logs.shop", 1048577]],   done up to this sequence
     "files": [{...}],                    see `penstock.collector.sources.files.identity`
     "marks": {"1": [900, 17638700000000, 17, 17, "<hash>"]},   of files, by generation; may lack
     "new_from": {"file/1": {"": 900, "joined": 170}},   see `Delivery.new_from`; may lack
     "next_generation": 3,
     "sources": ["files"],                file sources that ran before
     "quarantine": "<uuid>",              part of identities in quarantine; may lack
     "routing": "<digest>"}               see `penstock.collector.agent.route_fingerprint`; may lack

Release 0.1.0 wrote `rules` and `since` instead of `routing`: they are not read, and what waits then
may come twice. It is replaced as a whole. An old one is safe: what it has forgotten is read again,
and logd knows it already. A new one is durable before any segment of the spool that it passes is
deleted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

from penstock.collector.delivery.ordered_queue import QueueKey
from penstock.collector.sources.files.identity import FileState, read_mark

VERSION: Final = 1
SPOOL_ORIGIN: Final = "spool"
URGENT_ORIGIN: Final = "spool-urgent"
SPOOL_ORIGINS: Final = (SPOOL_ORIGIN, URGENT_ORIGIN)
INDEX_BITS: Final = 20
"""Low bits of a spool queue's sequence that count records within a unit."""


class NewerStateError(Exception):
    """A later version wrote the checkpoint."""


@dataclass(slots=True)
class State:
    """The checkpoint's content.

    Attributes:
        incarnation: Another one when producers' sequences begin again.
        quarantine: Another one when the spool's offsets begin again, too.
        new_from: Positions from which records are new to transforms, by origin and transform.
        routing: The route fingerprint of what may be read again; "": unknown.
    """

    incarnation: UUID = field(default_factory=uuid4)
    quarantine: UUID = field(default_factory=uuid4)
    cursor: int = 0
    urgent_cursor: int = 0
    replayed: int = 0
    senders: dict[str, int] = field(default_factory=dict)
    urgent_senders: dict[str, int] = field(default_factory=dict)
    queues: dict[QueueKey, int] = field(default_factory=dict)
    files: list[FileState] = field(default_factory=list)
    new_from: dict[str, dict[str, int]] = field(default_factory=dict)
    next_generation: int = 1
    sources: list[str] = field(default_factory=list)
    routing: str = ""

    def cursor_of(self, origin: str) -> int:
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
            self.quarantine = uuid4()
            self._begin_anew(foreign)
        begin = {
            origin: start if origin in foreign else max(self.cursor_of(origin), start)
            for origin, (start, _) in found.items()
        }
        self.cursor, self.urgent_cursor = begin[SPOOL_ORIGIN], begin[URGENT_ORIGIN]
        return bool(foreign)

    def fit_to_routing(self, fingerprint: str, ends: Mapping[str, int]) -> list[str]:
        """Adapt to the route fingerprint by which records are read from now on.

        Unless it is known and the same, what waits is read under a new incarnation: what was
        delivered of it beyond the cursor comes twice.

        Args:
            fingerprint: Fingerprint of the configuration that runs; "": unknown.
            ends: Ends of the spools and known files; records that are done below are not read
                again. An unnamed file may have more.

        Returns:
            The origins of what waits, if so.
        """
        known = fingerprint != "" and fingerprint == self.routing
        self.routing = fingerprint
        if known:
            return []
        begins = {origin: self.cursor_of(origin) for origin in SPOOL_ORIGINS}
        begins |= {file.origin: file.position for file in self.files}
        waiting = [o for o, begin in begins.items() if o not in ends or begin < ends[o]]
        if waiting:
            self._begin_anew(waiting)
        return waiting

    def _begin_anew(self, origins: Collection[str]) -> None:
        self.incarnation = uuid4()
        self.queues = {key: n for key, n in self.queues.items() if key.origin not in origins}
        self.new_from = {o: found for o, found in self.new_from.items() if o not in origins}

    def _is_beyond(self, origin: str, end_offset: int) -> bool:
        spooled = [n for key, n in self.queues.items() if key.origin == origin]
        last_unit = (max(spooled, default=0) - 1) >> INDEX_BITS
        read = self.new_from.get(origin, {}).values()
        return max(self.cursor_of(origin), last_unit + 1, *read) > end_offset

    def _forget_lost_files(self) -> None:
        """Drop what is known of generations that are not read any more."""
        origins = {*SPOOL_ORIGINS, *(state.origin for state in self.files)}
        self.queues = {key: n for key, n in self.queues.items() if key.origin in origins}
        self.new_from = {o: found for o, found in self.new_from.items() if o in origins}

    def as_document(self) -> dict[str, Any]:
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
                for key, sequence in self.queues.items()
            ],
            "files": [state.as_dict() for state in self.files],
            "marks": {
                str(state.generation): state.mark.as_list()
                for state in self.files
                if state.mark is not None
            },
            "new_from": self.new_from,
            "next_generation": self.next_generation,
            "sources": self.sources,
            "quarantine": str(self.quarantine),
            "routing": self.routing,
        }


def read_state(document: dict[str, Any]) -> State:
    """Read a checkpoint's JSON.

    Raises:
        NewerStateError: It was written by a later version.
        ValueError: It is no checkpoint.
    """
    version = _checked(document, {"version": int})["version"]
    if version != VERSION:
        msg = f"checkpoint version {version} is not known; this one reads {VERSION}"
        raise NewerStateError(msg)
    later = {**_ADDED_LATER, "quarantine": document.get("incarnation")}
    found = _checked({**later, **document}, _FIELDS)
    marks = document.get("marks")
    files = [_file(state) for state in found["files"]]
    for state in files:
        known = marks.get(str(state.generation)) if isinstance(marks, dict) else None
        state.mark = read_mark(known)
    return State(
        incarnation=UUID(found["incarnation"]),
        quarantine=UUID(found["quarantine"]),
        cursor=found["cursor"],
        urgent_cursor=found["urgent_cursor"],
        replayed=found["replayed"],
        senders=_senders(found["senders"]),
        urgent_senders=_senders(found["urgent_senders"]),
        queues=dict(map(_queue, found["lanes"])),
        files=files,
        new_from={origin: _positions(each) for origin, each in found["new_from"].items()},
        next_generation=found["next_generation"],
        sources=[_name(source) for source in found["sources"]],
        routing=found["routing"],
    )


_NUMBERS: Final = range(1 << 64)
_ADDED_LATER: Final = {
    "urgent_cursor": 0,
    "replayed": 0,
    "urgent_senders": {},
    "new_from": {},
    "routing": "",
}
_FIELDS: Final = {
    "incarnation": str,
    "quarantine": str,
    "cursor": int,
    "urgent_cursor": int,
    "replayed": int,
    "senders": dict,
    "urgent_senders": dict,
    "lanes": list,
    "files": list,
    "new_from": dict,
    "next_generation": int,
    "sources": list,
    "routing": str,
}
_FILE: Final = {
    "source": str,
    "generation": int,
    "device": int,
    "inode": int,
    "head_hash": str,
    "head_length": int,
    "path": str,
    "position": int,
}


def _checked(found: object, kinds: Mapping[str, type]) -> dict[str, Any]:
    """These fields of what should have them."""
    if not isinstance(found, dict):
        msg = f"{found!r} is no object"
        raise ValueError(msg)  # noqa: TRY004 - of a file, not of an argument
    for name, kind in kinds.items():
        value = found.get(name)
        if type(value) is not kind or (kind is int and value not in _NUMBERS):
            msg = f"{name} is {value!r}"
            raise ValueError(msg)
    return {name: found[name] for name in kinds}


def _file(found: object) -> FileState:
    state = _checked(found, _FILE)
    if found != state:
        msg = f"a file has more than this version knows: {found!r}"
        raise ValueError(msg)
    return FileState(**state)


def _senders(found: dict[str, Any]) -> dict[str, int]:
    for sender in found:
        bytes.fromhex(sender)
    return _positions(found)


def _positions(found: Any) -> dict[str, int]:
    return _checked(found, dict.fromkeys(found, int))


def _name(found: object) -> str:
    if not isinstance(found, str):
        msg = f"{found!r} is no name"
        raise ValueError(msg)  # noqa: TRY004 - likewise
    return found


def _queue(found: object) -> tuple[QueueKey, int]:
    match found:
        case [str(origin), str(source), str(subject), int(sequence)]:
            return QueueKey(origin, source, subject), sequence
        case [str(origin), str(source), str(subject), int(sequence), int(branch)]:
            return QueueKey(origin, source, subject, branch), sequence
        case _:
            msg = f"{found!r} is no queue"
            raise ValueError(msg)
