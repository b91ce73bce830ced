"""Ways to be wrong, of one part or another: the world where all play together must catch each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.logd.controller import liveness, placement
from penstock.logd.controller.controller import Controller
from penstock.logd.errors import RefusedError
from penstock.logd.metadata import stream_rules
from penstock.logd.metadata.commands import Election
from penstock.logd.metadata.tables import Tables, basis_of
from penstock.logd.replication.events import AnswerCame, LeaderAndIsr
from penstock.logd.replication.leader import Isr, Leader
from penstock.logd.replication.replica import Replica
from tests.sim.cluster_replica import Ids
from tests.sim.twins import Mutation

if TYPE_CHECKING:
    from penstock.logd.controller.liveness import PartitionReport
    from penstock.logd.metadata.records import PartitionKey, PartitionRecord, StreamRecord
    from penstock.logd.replication.events import NodeId, ProposeIsr

Patch = Callable[[Mutation], None]


def _added_counts_before_it_has_caught_up(code: Mutation) -> None:
    """Every replica that fetches enters the ISR."""

    def may_join(isr: Isr, node: NodeId, *_: Any) -> bool:
        return node in isr._view.replicas

    code.replace(Isr, "may_join", may_join)
    code.replace(Isr, "_may_stay", lambda *_: True)


def _additions_do_not_count(code: Mutation) -> None:
    """Who is proposed to enter counts for the high watermark only when it has."""
    propose = Isr.propose

    def uncounted(isr: Isr, *args: Any) -> ProposeIsr | None:
        proposal = propose(isr, *args)
        isr.counted = isr._view.isr
        return proposal

    code.replace(Isr, "propose", uncounted)


def _old_replica_goes_first(code: Mutation) -> None:
    """A move does not wait until the new replica is in sync."""
    next_step = placement._next_step

    def hasty(
        fitness: Any,
        key: PartitionKey,
        stream: StreamRecord,
        partition: PartitionRecord,
        *lists: Any,
    ) -> None:
        target = partition.target or ()
        isr = tuple(sorted({*partition.isr, *target} & set(partition.replicas)))
        next_step(fitness, key, stream, replace(partition, isr=isr), *lists)

    code.replace(placement, "_next_step", hasty)


def _leader_is_removed(code: Mutation) -> None:
    """A replica that leads is taken away like any other."""
    code.replace(stream_rules, "_check_removable", lambda *_: None)
    next_step = placement._next_step

    def blind(
        fitness: Any,
        key: PartitionKey,
        stream: StreamRecord,
        partition: PartitionRecord,
        *lists: Any,
    ) -> None:
        next_step(fitness, key, stream, replace(partition, leader=None), *lists)

    code.replace(placement, "_next_step", blind)


def _stale_incarnation_accepted(code: Mutation) -> None:
    """What is about a deleted stream, or of its replicas, is taken for the new one's."""
    play = Replica._play

    def trusting(replica: Replica, event: Any, now_ns: int) -> Any:
        if isinstance(event, AnswerCame):
            answer = msgspec.structs.replace(event.answer, incarnation=replica._incarnation)
            event = msgspec.structs.replace(event, answer=answer)
        return play(replica, event, now_ns)

    def stream(tables: Tables, name: str, _: str) -> StreamRecord:
        found = tables.streams.get(name)
        if found is None or not found.is_open:
            raise RefusedError("UNKNOWN_STREAM", "there is no such stream")
        return found

    code.replace(Tables, "stream", stream)
    code.replace(Replica, "_play", trusting)
    code.replace(Replica, "_serves", lambda replica, _: isinstance(replica.state, Leader))


def _incarnation_twice(code: Mutation) -> None:
    """A stream that is made again is the one that there was."""
    code.replace(stream_rules, "_new_incarnation", lambda _, nonce: nonce)


def _stale_lease_ack(code: Mutation) -> None:
    """A leader that slept through its lease acks what it appends."""
    code.replace(Leader, "_watch_lease", lambda *_: None)


def _handed_over_at_once(code: Mutation) -> None:
    """The successor is elected while the leader still holds its lease."""

    def handover(
        key: PartitionKey, stream: StreamRecord, partition: PartitionRecord, successor: str
    ) -> Election:
        basis = basis_of(key, stream, partition)
        return Election(basis=basis, leader=successor, isr=partition.isr)

    code.replace(placement, "_handover", handover)


def _answers_who_is_behind(code: Mutation) -> None:
    """A node gets a lease though it does not know what it has lost."""
    code.replace(Controller, "_is_behind", lambda *_: False)
    code.replace(Controller, "_is_losing", lambda *_: False)


def _ids_of_fetched_records_unknown(code: Mutation) -> None:
    """A follower does not remember ids, and takes a repeat for something new when it leads."""

    def forget(ids: Ids, message: Any, offset: int) -> None:
        dict.__setitem__(ids, message, offset)

    code.replace(Ids, "__setitem__", forget)


def _word_of_a_removed_replica_counts(code: Mutation) -> None:
    """What a replica said that was removed is taken for what its successor there says."""
    code.replace(LeaderAndIsr, "holds_since", lambda *_: 0)


def _replica_that_is_back_is_nothing_new(code: Mutation) -> None:
    """The controller does not look again when a log that failed is there again."""
    matters = liveness._matters

    def only_what_is_known(seen: Any, report: PartitionReport) -> bool:
        return report.key in seen.reports and matters(seen, report)

    code.replace(liveness, "_matters", only_what_is_known)


def _opened_again_it_leads_on(code: Mutation) -> None:
    """A log that failed and was opened again leads in the epoch that it gave back."""
    why = Replica._why_not_lead

    def forgets(self: Replica, view: LeaderAndIsr) -> str:
        self._resigned_epoch = 0
        return why(self, view)

    code.replace(Replica, "_why_not_lead", forgets)


class Twin(NamedTuple):
    """A way to be wrong, and a seed that has shown it."""

    spoil: Patch
    seed: int


TWINS: Final = {
    "an added replica counts before it has caught up": Twin(
        _added_counts_before_it_has_caught_up, seed=0
    ),
    "the word of a removed replica counts": Twin(_word_of_a_removed_replica_counts, seed=8133),
    "a replica that is back is nothing new": Twin(_replica_that_is_back_is_nothing_new, seed=11844),
    "an epoch that was given back is led again": Twin(_opened_again_it_leads_on, seed=40384),
    "additions do not count": Twin(_additions_do_not_count, seed=18),
    "the old replica goes before the new one is in sync": Twin(_old_replica_goes_first, seed=0),
    "a leader is removed": Twin(_leader_is_removed, seed=2),
    "a stale incarnation is accepted": Twin(_stale_incarnation_accepted, seed=47),
    "an incarnation comes twice": Twin(_incarnation_twice, seed=7),
    "a stale lease acks": Twin(_stale_lease_ack, seed=0),
    "a leadership is handed over at once": Twin(_handed_over_at_once, seed=220),
    "a node is answered that is behind": Twin(_answers_who_is_behind, seed=68),
    "ids of fetched records are unknown": Twin(_ids_of_fetched_records_unknown, seed=9),
}
