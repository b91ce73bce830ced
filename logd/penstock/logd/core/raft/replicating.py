"""Sending the log to the other members: appends, snapshots, and what their answers mean."""

from typing import TYPE_CHECKING

from penstock.logd.core.node import NodeId
from penstock.logd.core.raft.messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    SnapshotChunk,
    SnapshotResponse,
)
from penstock.logd.core.raft.outbox import Needs
from penstock.logd.core.raft.progress import Inflights, Progress, ProgressState

if TYPE_CHECKING:
    from penstock.logd.core.raft.member import Raft


class Replicator:
    """A leader's view of all members' logs, its own among them.

    Args:
        raft: The member.

    Attributes:
        progress: Of every member, and of those whose removal is not committed.
        round: Of the last heartbeat.
    """

    def __init__(self, raft: "Raft") -> None:
        self._raft = raft
        self.progress: dict[NodeId, Progress] = {}
        self.round = 0
        self.add_members()

    def add_members(self) -> None:
        """Begin to send to the members of the membership in force that are new."""
        raft = self._raft
        for node in sorted(raft.memberships.current.members - self.progress.keys()):
            config = raft.config
            inflights = Inflights(config.inflight_messages_max, config.inflight_bytes_max)
            self.progress[node] = Progress(raft.log.last_index + 1, raft.now_ns, inflights)

    def remove_members(self) -> None:
        """Their removal is committed: tell the removed, once, and forget them."""
        raft = self._raft
        for node in sorted(self.progress.keys() - raft.memberships.current.members):
            if node != raft.config.node:
                self.replicate(node)
            del self.progress[node]

    def replicate_to_all(self) -> None:
        """Send every other member what it may have and has not."""
        for node in sorted(self.progress):
            if node != self._raft.config.node:
                self.replicate(node)

    def replicate(self, node: NodeId, *, even_empty: bool = False) -> None:
        """Send a member what it may have and has not, as far as its flow control goes.

        Args:
            node: Another member.
            even_empty: Send an append without entries when there is nothing else: its answer says
                whether what was sent before has arrived.
        """
        progress, log = self.progress[node], self._raft.log
        if progress.next <= log.base_index and progress.state is not ProgressState.SNAPSHOT:
            assert log.snapshot is not None
            progress.begin_snapshot(log.snapshot)
            self._send_chunk(node, progress)
            return
        if even_empty and progress.state is ProgressState.REPLICATE and progress.is_paused:
            self._append(node, progress, 0)
            return
        while not progress.is_paused:
            if progress.next > log.last_index and not even_empty:
                told = progress.commit_sent >= log.committed
                if told and progress.state is ProgressState.REPLICATE:
                    return
            self._append(node, progress, self._raft.config.append_bytes_max)
            even_empty = False

    def acknowledged(self, node: NodeId, response: AppendResponse) -> bool:
        """A member has the log up to an index; whether that is news."""
        return self.progress[node].acknowledge(response.index)

    def rejected(self, node: NodeId, rejection: AppendRejection) -> None:
        """A member's log is another one than supposed: look for where they agree."""
        possible = self._raft.log.last_possible_match(rejection.hint_index, rejection.hint_term)
        if self.progress[node].reject(rejection.previous_index, possible):
            self.replicate(node)

    def chunk_arrived(self, node: NodeId, response: SnapshotResponse) -> None:
        """A member has so much of a snapshot: send the next part."""
        progress = self.progress[node]
        snapshot = progress.snapshot
        if snapshot is None or snapshot.index != response.index:
            return
        if response.offset != progress.snapshot_offset and response.offset < len(snapshot.data):
            progress.snapshot_offset = response.offset  # back to 0 if it has begun anew
            self._send_chunk(node, progress)

    def heartbeat_answered(self, node: NodeId) -> None:
        """A member lives: what it has not answered may be lost, so say something again."""
        progress = self.progress[node]
        progress.resume()
        if progress.state is ProgressState.SNAPSHOT:
            if progress.acked_round > progress.chunk_round:
                self._send_chunk(node, progress)
        elif progress.match < self._raft.log.last_index or progress.state is ProgressState.PROBE:
            self.replicate(node, even_empty=True)

    def _append(self, node: NodeId, progress: Progress, bytes_max: int) -> None:
        raft, log = self._raft, self._raft.log
        previous = progress.next - 1
        entries = tuple(log.entries_from(progress.next, bytes_max)) if bytes_max else ()
        previous_term = log.term_at(previous)
        assert previous_term is not None, f"entry {previous} is compacted"
        request = AppendRequest(previous, previous_term, entries, log.committed)
        raft.send(node, request, Needs.NOTHING)
        progress.sent(entries, log.committed)

    def _send_chunk(self, node: NodeId, progress: Progress) -> None:
        raft, snapshot = self._raft, progress.snapshot
        assert snapshot is not None
        offset = progress.snapshot_offset
        chunk = SnapshotChunk(
            index=snapshot.index,
            index_term=snapshot.term,
            membership=snapshot.membership,
            total_bytes=len(snapshot.data),
            offset=offset,
            data=snapshot.data[offset : offset + raft.config.snapshot_chunk_bytes],
        )
        raft.send(node, chunk, Needs.NOTHING)
        progress.chunk_round = self.round
