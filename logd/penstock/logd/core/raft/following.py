"""A follower, or a learner: it takes what the leader sends, and waits for it no longer than so."""

from typing import TYPE_CHECKING

from penstock.logd.core.node import DATA_LOST, NodeId
from penstock.logd.core.raft.entries import Snapshot
from penstock.logd.core.raft.errors import BusyError, NotLeaderError
from penstock.logd.core.raft.events import LeaderChanged, Refused
from penstock.logd.core.raft.messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    LeaderBody,
    Message,
    ReadRequest,
    ReadResponse,
    SnapshotChunk,
    SnapshotResponse,
    TimeoutNow,
)
from penstock.logd.core.raft.outbox import Needs

if TYPE_CHECKING:
    from penstock.logd.core.raft.member import Raft


class Follower:
    """The role of a member that neither leads nor wants to.

    Args:
        raft: The member.
        leader: Whom it follows; None: it knows of none yet.

    Attributes:
        deadline_ns: When it gives the leader up.
    """

    def __init__(self, raft: "Raft", leader: NodeId | None) -> None:
        self._raft = raft
        self.leader = leader
        self.deadline_ns = 0
        self._incoming: _Incoming | None = None
        self.wait()

    def wait(self) -> None:
        """Begin to wait for the leader anew, for a random time so that not all give up at once."""
        raft = self._raft
        config = raft.config
        if raft.memberships.only_voter_ever(config.node):
            self.deadline_ns = raft.now_ns  # there is nobody to wait for
            return
        wait_ns = raft.random.randint(
            config.election_timeout_min_ns, config.election_timeout_max_ns
        )
        self.deadline_ns = raft.now_ns + wait_ns

    def next_deadline_ns(self) -> int:
        """When `expire` has something to do."""
        return self.deadline_ns

    def expire(self) -> None:
        """Look at the clock: without a leader for long, stand for election."""
        raft = self._raft
        if raft.now_ns < self.deadline_ns:
            return
        if raft.may_campaign:
            raft.campaign(pre=True, transfer=False)
            return
        if self.leader is not None:
            self.leader = None
            raft.outbox.emit(LeaderChanged(raft.term, None))
            raft.refuse_asked_reads()
        self.wait()

    def step(self, message: Message) -> None:
        """Take a message of the current term."""
        raft = self._raft
        match message.body:
            case AppendRequest() | Heartbeat() | SnapshotChunk():
                self._hear(message.sender)
                self._take(message.sender, message.body)
            case TimeoutNow() if message.sender == self.leader and raft.may_campaign:
                raft.campaign(pre=False, transfer=True)
            case ReadResponse(number, index) if message.sender == self.leader:
                raft.reads.answer(number, index)
            case _:
                pass  # answers to what it asked in another role

    def propose(self, tag: int) -> None:
        """Only the leader takes proposals."""
        self._raft.outbox.emit(Refused(tag, NotLeaderError(self.leader)))

    def read(self, tag: int) -> None:
        """Ask the leader for a read index."""
        raft = self._raft
        if self.leader is None:
            raft.outbox.emit(Refused(tag, NotLeaderError(None)))
        elif raft.reads.is_full:
            raft.outbox.emit(Refused(tag, BusyError(f"{raft.config.reads_max} reads wait")))
        else:
            number = raft.reads.ask(tag, raft.now_ns)
            raft.send(self.leader, ReadRequest(number), Needs.NOTHING)

    def persisted(self) -> None:
        """Something became durable: nothing to do but what the outbox does."""

    def _hear(self, leader: NodeId) -> None:
        raft = self._raft
        if self.leader is None:
            self.leader = leader
            raft.outbox.emit(LeaderChanged(raft.term, leader))
        assert self.leader == leader, f"term {raft.term} has leaders {self.leader} and {leader}"
        raft.heard_ns = raft.now_ns
        self.wait()

    def _take(self, leader: NodeId, body: LeaderBody) -> None:
        raft = self._raft
        match body:
            case AppendRequest():
                self._append(leader, body)
            case Heartbeat(commit, round_number):
                if commit > raft.log.last_index:
                    raft.halt(
                        f"{DATA_LOST}: entries of the metadata up to {commit} were acknowledged,"
                        " which its disk lacks"
                    )
                    return
                raft.log.commit_to(commit)
                raft.send(leader, HeartbeatResponse(round_number), Needs.HARD_STATE)
            case SnapshotChunk():
                self._take_chunk(leader, body)

    def _append(self, leader: NodeId, body: AppendRequest) -> None:
        """Take entries if they follow on what is here (Raft 5.3)."""
        raft, log = self._raft, self._raft.log
        if body.previous_index < log.committed:  # also what a snapshot covers meanwhile
            raft.send(leader, AppendResponse(log.committed), Needs.EVERYTHING)
            return
        if not log.matches(body.previous_index, body.previous_term):
            hint = log.last_possible_match(body.previous_index, body.previous_term)
            rejection = AppendRejection(body.previous_index, hint, log.term_at(hint) or 0)
            raft.send(leader, rejection, Needs.HARD_STATE)
            return
        conflict = log.first_conflict(body.entries)
        if conflict is not None:
            if conflict.index <= log.last_index:
                raft.truncate(conflict.index)
            raft.append(body.entries[conflict.index - body.previous_index - 1 :])
        last = body.previous_index + len(body.entries)
        log.commit_to(min(body.commit, last))
        raft.send(leader, AppendResponse(last), Needs.EVERYTHING)

    def _take_chunk(self, leader: NodeId, chunk: SnapshotChunk) -> None:
        """Take a part of a snapshot; the whole one replaces the log if it is newer."""
        raft, log = self._raft, self._raft.log
        if chunk.index <= log.committed or log.matches(chunk.index, chunk.index_term):
            self._incoming = None
            log.commit_to(chunk.index)
            raft.send(leader, AppendResponse(log.committed), Needs.EVERYTHING)
            return
        if chunk.total_bytes > raft.config.snapshot_bytes_max:
            raft.ignore(leader, f"snapshot of {chunk.total_bytes} bytes exceeds snapshot_bytes_max")
            return
        incoming = self._incoming
        if incoming is None or not incoming.belongs(chunk):
            incoming = self._incoming = _Incoming(chunk)
        if not incoming.take(chunk):
            raft.send(leader, SnapshotResponse(chunk.index, incoming.offset), Needs.HARD_STATE)
            return
        self._incoming = None
        raft.applier.install(incoming.snapshot())
        raft.send(leader, AppendResponse(chunk.index), Needs.EVERYTHING)


class _Incoming:
    """A snapshot that is coming, part by part."""

    def __init__(self, chunk: SnapshotChunk) -> None:
        self._first = chunk
        self._data = bytearray()

    @property
    def offset(self) -> int:
        """Bytes that have come."""
        return len(self._data)

    def belongs(self, chunk: SnapshotChunk) -> bool:
        """Whether a chunk is of this snapshot."""
        first = self._first
        one = (first.index, first.index_term, first.total_bytes)
        return one == (chunk.index, chunk.index_term, chunk.total_bytes)

    def take(self, chunk: SnapshotChunk) -> bool:
        """Add a chunk if it is the next one; whether the snapshot is whole then."""
        if chunk.offset == self.offset and self.offset + len(chunk.data) <= chunk.total_bytes:
            self._data += chunk.data
        return self.offset == self._first.total_bytes

    def snapshot(self) -> Snapshot:
        """The whole one."""
        first = self._first
        return Snapshot(first.index, first.index_term, first.membership, bytes(self._data))
