"""What a Raft member has on its disk, in a simulation: nothing but what was synced survives."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Protocol

from msgspec.structs import replace

from penstock.logd.raft import Entry, HardState, Membership, Persist, Recovered, Snapshot
from penstock.logd.raft.storage import RaftStorage
from penstock.logd.replication.events import NodeId
from tests.sim.disk import MemoryDisk


class SimStorage(Protocol):
    """A disk that can be crashed while it writes."""

    @property
    def hard_state(self) -> HardState:
        """The durable one."""
        ...

    def persist(self, effect: Persist) -> None:
        """Write and sync; all of it is durable when this returns."""
        ...

    def crash(self, unfinished: list[Persist], random: Random) -> None:
        """Lose power; what was being written is lost, kept or torn."""
        ...

    def recover(self) -> Recovered:
        """What a member finds when it starts."""
        ...

    def term_at(self, index: int) -> int | None:
        """The term of a durable entry; None if there is none. Those below a snapshot count."""
        ...


@dataclass
class ModelStorage:
    """The promise itself: steps are durable one after another, the last maybe in part."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, recovered: Recovered) -> "ModelStorage":
        return cls(recovered.hard_state, recovered.snapshot, list(recovered.entries))

    def persist(self, effect: Persist) -> None:
        if effect.hard_state is not None:
            self.hard_state = effect.hard_state
        if effect.snapshot is not None:
            self.snapshot = effect.snapshot
            kept = [] if effect.installed else self.entries
            self.entries = [entry for entry in kept if entry.index > effect.snapshot.index]
        if effect.entries:
            first = effect.entries[0].index
            assert first <= self.last_index + 1, "entries with a gap before them"
            self.entries = [entry for entry in self.entries if entry.index < first]
            self.entries.extend(e for e in effect.entries if e.index > self._base)

    def crash(self, unfinished: list[Persist], random: Random) -> None:
        """Steps are written in order, and so are the parts of one."""
        for effect in unfinished:
            if random.random() < 0.4:
                cut = random.randint(0, 3)
                self.persist(
                    replace(
                        effect,
                        hard_state=effect.hard_state if cut >= 1 else None,
                        snapshot=effect.snapshot if cut >= 2 else None,
                        entries=effect.entries[: random.randint(0, len(effect.entries))]
                        if cut >= 3
                        else (),
                    )
                )
                return
            self.persist(effect)

    def recover(self) -> Recovered:
        return Recovered(self.hard_state, self.snapshot, tuple(self.entries))

    def term_at(self, index: int) -> int | None:
        position = index - self._base - 1
        if 0 <= position < len(self.entries):
            return self.entries[position].term
        return -1 if index <= self._base else None

    @property
    def last_index(self) -> int:
        return self._base + len(self.entries)

    @property
    def _base(self) -> int:
        return self.snapshot.index if self.snapshot else 0


DIRECTORY: Final = Path("/raft")
NODE: Final = NodeId("n")


class DiskStorage:
    """The real storage on a disk that loses and tears, compared with what it promised.

    `model` is what is durable for sure: after each crash the real one must have that, or one of
    the unfinished steps more.
    """

    def __init__(self, recovered: Recovered, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.model = ModelStorage.of(recovered)
        initial_members = (
            Membership.decode(recovered.entries[0].data) if recovered.entries else None
        )
        RaftStorage.create(
            DIRECTORY, group="g", node=NODE, initial_members=initial_members, disk=self.disk
        )
        self.storage = self._open()

    @property
    def hard_state(self) -> HardState:
        return self.model.hard_state

    def persist(self, effect: Persist) -> None:
        self.storage.persist(effect)
        self.model.persist(effect)

    def crash(self, unfinished: list[Persist], random: Random) -> None:
        """The power goes at some operation of the steps that were under way."""
        possible = [self._model_state()]
        countdown = [random.randint(0, 12)]

        def fail(operation: str, _: Path) -> bool:
            if operation in ("write", "sync", "sync_directory", "rename", "unlink", "create"):
                countdown[0] -= 1
            return countdown[0] < 0

        self.disk.fail = fail
        with contextlib.suppress(OSError):
            for effect in unfinished:
                self.model.persist(effect)
                possible.append(self._model_state())
                self.storage.persist(effect)
                possible = possible[-1:]
        self.disk.crash(random)
        self.storage = self._open()
        recovered = self.storage.recovered
        assert recovered in possible, "storage: neither the old state nor the new one"
        self.model = ModelStorage.of(recovered)

    def recover(self) -> Recovered:
        self.storage = self._open()
        assert self.storage.recovered == self._model_state(), "storage: another state"
        return self.storage.recovered

    def term_at(self, index: int) -> int | None:
        return self.model.term_at(index)

    def _open(self) -> RaftStorage:
        return RaftStorage.open(
            DIRECTORY, group="g", node=NODE, disk=self.disk, max_segment_bytes=1500
        )

    def _model_state(self) -> Recovered:
        return self.model.recover()
