"""Known-bad twins: each breaks one rule of replication as others have broken it before.

What a twin is, and why it may replace what it names: `tests.sim.twins`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.logd.replication.corrupt_ranges import CorruptRanges
from penstock.logd.replication.events import (
    Diverged,
    Electable,
    EpochSaved,
    Fetch,
    LeaderAndIsrChanged,
    LeaseRenewed,
    OutOfRange,
    RangeCame,
    Refusal,
    SaveHighWatermark,
    Synced,
    Tell,
    Truncated,
    WasReset,
    Written,
)
from penstock.logd.replication.follower import Follower
from penstock.logd.replication.leader import Isr, Leader, Peer
from penstock.logd.replication.log_state import Epochs, LogState
from penstock.logd.replication.replica import Replica
from tests.sim.replication_disk import Writer
from tests.sim.replication_node import MS, Node
from tests.sim.twins import Mutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logd.intake.dedup import DedupMark
    from penstock.logd.replication.events import Effect, LeaderAndIsr, NodeId, ProposeIsr


def _ack_before_fsync(code: Mutation) -> None:
    """A follower vouches for what it has written, and the leader for its own."""

    def appended(writer: Writer, records: Any) -> None:
        writer.disk.records += records
        writer.tell(Synced(writer.disk.end, writer.cuts))
        writer.sync_soon()

    code.replace(Writer, "appended", appended)


def _truncation_to_the_high_watermark(code: Mutation) -> None:
    """A new follower cuts what it does not know to be committed: the hole of KIP-101."""
    begin = Follower.begin

    def cut_first(follower: Follower) -> list[Effect]:
        upto = follower._log.high_watermark + 1
        if follower._log.start <= upto < follower._log.written:
            return [follower._truncate(upto)]
        return begin(follower)

    code.replace(Follower, "begin", cut_first)


def _answer_with_the_askers_epoch(code: Mutation) -> None:
    """The leader says where its log ends for an epoch, not which epoch it means: KIP-279."""
    compare = Leader._compare

    def compare_ends(leader: Leader, fetch: Fetch) -> Diverged | OutOfRange | None:
        answer = compare(leader, fetch)
        if isinstance(answer, Diverged):
            if fetch.offset <= answer.end_offset:
                return None
            return replace(answer, epoch=fetch.last_epoch)
        return answer

    code.replace(Leader, "_compare", compare_ends)


def _rejoin_at_the_high_watermark(code: Mutation) -> None:
    """Who has what this leader knows to be committed enters, whatever it inherited: KAFKA-7128."""
    init = Isr.__init__

    def without_start(isr: Isr, *args: Any, epoch_start: int) -> None:
        init(isr, *args, epoch_start=0)

    code.replace(Isr, "__init__", without_start)


def _rejoin_by_recency(code: Mutation) -> None:
    """Who has fetched lately enters."""

    def may_join(isr: Isr, node: NodeId, peer: Peer, _: LogState) -> bool:
        return node in isr._view.replicas and peer.agreed and not peer.lost

    def may_stay(*_: Any) -> bool:
        return True

    code.replace(Isr, "may_join", may_join)
    code.replace(Isr, "_may_stay", may_stay)


def _shrink_before_commit(code: Mutation) -> None:
    """Who is proposed to leave counts no more, before the controller has agreed."""
    propose = Isr.propose

    def at_once(isr: Isr, *args: Any) -> ProposeIsr | None:
        proposal = propose(isr, *args)
        if proposal is not None:
            isr.counted = proposal.isr
        return proposal

    code.replace(Isr, "propose", at_once)


def _additions_do_not_count(code: Mutation) -> None:
    """Who is proposed to enter counts only when the leader hears that it has."""
    propose = Isr.propose

    def uncounted(isr: Isr, *args: Any) -> ProposeIsr | None:
        proposal = propose(isr, *args)
        isr.counted = isr._view.isr
        return proposal

    code.replace(Isr, "propose", uncounted)


def _refusal_ends_an_addition(code: Mutation) -> None:
    """An addition counts until any answer comes, though a copy of it may still be under way."""
    answered = Isr.answered

    def forget(isr: Isr, *args: Any) -> bool:
        isr._added = frozenset()
        isr.counted = isr._view.isr
        return answered(isr, *args)

    code.replace(Isr, "answered", forget)


def _lease_not_watched(code: Mutation) -> None:
    """A leader that slept through its lease acks what it appends."""
    code.replace(Leader, "_watch_lease", lambda *_: None)


def _lease_without_metadata(code: Mutation) -> None:
    """A lease is taken before what the controller had committed is known here."""

    def leased(node: Node, until_ns: int, view: LeaderAndIsr, _: int) -> None:
        node.take(LeaseRenewed(until_ns))
        node.later(
            node.world.random.randrange(30 * MS), lambda: node.take(LeaderAndIsrChanged(view))
        )

    code.replace(Node, "leased", leased)


def _older_epochs_count(code: Mutation) -> None:
    """A fetch under an older epoch is served like any other."""
    refuse = Leader._refuse

    def lenient(leader: Leader, fetch: Fetch) -> Refusal | None:
        refusal = refuse(leader, fetch)
        return None if refusal is Refusal.OLDER_EPOCH else refusal

    def trusting(_: Leader, __: Fetch) -> None:
        return None

    code.replace(Leader, "_refuse", lenient)
    code.replace(Leader, "_compare", trusting)


def _cut_beside_an_append(code: Mutation) -> None:
    """A deposed leader truncates while its last append is running."""
    code.replace(LogState, "busy", property(lambda log: log.cutting))


def _epoch_starts_one_early(code: Mutation) -> None:
    """A leader notes the last offset of the epoch before as the start of its own."""
    begin = Leader.begin

    def leader_begins(leader: Leader, now_ns: int) -> list[Effect]:
        effects = begin(leader, now_ns)
        entries = [*leader._log.epochs.entries]
        epoch, start = entries.pop()
        if start > leader._log.start and (not entries or entries[-1][1] < start - 1):
            leader._log.epochs = Epochs([*entries, (epoch, start - 1)])
        return effects

    code.replace(Leader, "begin", leader_begins)


def _same_epoch_again(code: Mutation) -> None:
    """A process goes on with the epoch of the one before it."""
    why_not = Replica._why_not_lead

    def lead_on(replica: Replica, view: LeaderAndIsr) -> str:
        reason = why_not(replica, view)
        return "" if "earlier process" in reason else reason

    begin = Leader.begin

    def begin_again(leader: Leader, now_ns: int) -> list[Effect]:
        if leader._log.epochs.latest < leader.view.leader_epoch:
            return begin(leader, now_ns)
        leader._meet_peers(now_ns)
        return leader.handle(EpochSaved(leader.view.leader_epoch), now_ns)

    code.replace(Replica, "_why_not_lead", lead_on)
    code.replace(Leader, "begin", begin_again)


def _leads_with_a_hole(code: Mutation) -> None:
    """A damaged range keeps nobody from being elected."""
    holds = Replica._holds

    def lead_anyway(replica: Replica, view: LeaderAndIsr | None) -> Electable:
        held = holds(replica, view)
        return Electable() if held.ineligible == "hole" else held

    code.replace(Replica, "_holds", lead_anyway)


def _alone_over_any_hole(code: Mutation) -> None:
    """The only one in sync leads on, though what is damaged may not have been committed."""
    holds = Replica._holds

    def lead_on(replica: Replica, view: LeaderAndIsr | None) -> Electable:
        held = holds(replica, view)
        return Electable() if "may not be committed" in held.reason else held

    code.replace(Replica, "_holds", lead_on)


def _holes_looked_at_when_found(code: Mutation) -> None:
    """Who was alone when the hole was found leads on when others are in sync too."""
    look = Replica._look_at_holes

    def look_once(replica: Replica, now_ns: int, effects: list[Effect]) -> None:
        if any(isinstance(effect, Tell) for effect in effects):
            look(replica, now_ns, effects)
            return
        with Mutation() as inner:
            inner.replace(Leader, "resign", lambda *_: [])
            look(replica, now_ns, effects)

    code.replace(Replica, "_look_at_holes", look_once)


def _empty_epoch_kept(code: Mutation) -> None:
    """A leader that wrote nothing keeps its epoch when it follows."""
    code.replace(Epochs, "has_empty", lambda *_: False)


def _late_syncs_believed(code: Mutation) -> None:
    """What was synced before a cut is taken for what is there after it."""

    def grown(log: LogState, event: Written | Synced) -> None:
        log.written = max(log.written, event.upto)
        log.submitted = max(log.submitted, log.written)
        if isinstance(event, Synced):
            log.synced = max(log.synced, event.upto)

    code.replace(LogState, "_grown", grown)


def _disagreement_counts(code: Mutation) -> None:
    """A follower's end counts though its log was not compared."""
    fetched = Peer.fetched

    def trust(peer: Peer, fetch: Fetch, *, agreed: bool, dedup_agrees: bool | None) -> None:
        fetched(peer, fetch, agreed=True, dedup_agrees=dedup_agrees)
        del agreed

    code.replace(Peer, "fetched", trust)


def _lower_high_watermark_not_saved(code: Mutation) -> None:
    """After an unclean election a process still knows at its next start what was given up."""
    execute = Node.execute

    def forgetful(node: Node, effect: Effect) -> None:
        if not isinstance(effect, SaveHighWatermark):
            execute(node, effect)

    code.replace(Node, "execute", forgetful)


def _commits_below_the_minimum(code: Mutation) -> None:
    """One replica in sync is enough."""
    raise_it = Leader._raise_high_watermark

    def anyhow(leader: Leader, effects: list[Effect]) -> None:
        view = leader.view
        leader.view = replace(view, min_isr=1)
        raise_it(leader, effects)
        leader.view = view

    code.replace(Leader, "_raise_high_watermark", anyhow)


def _read_only_not_told(code: Mutation) -> None:
    """A leader that begins, or goes on after a lease, takes writes whatever the stream says."""
    lead = Leader._lead

    def lead_on(leader: Leader, now_ns: int, effects: list[Effect]) -> None:
        lead(leader, now_ns, effects)
        leader._refusing = leader._why_not(now_ns)

    code.replace(Leader, "_lead", lead_on)


def _later_start_is_divergence(code: Mutation) -> None:
    """A leader whose log begins with an epoch that is unknown here has lost what is before."""
    code.replace(Follower, "_begins_later", lambda *_: False)


def _failed_patch_waited_for(code: Mutation) -> None:
    """Who has been given what it lacks does not ask again, though it may not have been written."""
    came = CorruptRanges.came

    def for_ever(
        holes: CorruptRanges, event: RangeCame, log: LogState, now_ns: int
    ) -> list[Effect]:
        return came(holes, event, log, now_ns + 3600_000 * MS)

    code.replace(CorruptRanges, "came", for_ever)


def _empty_logs_begin_again(code: Mutation) -> None:
    """A log that retention has emptied begins where the leader's does, below what was committed."""
    compare, start_anew = Leader._compare, Follower._start_anew

    def strict(leader: Leader, fetch: Fetch) -> Diverged | OutOfRange | None:
        return compare(leader, replace(fetch, settled=False))

    def lower(follower: Follower, start: int) -> list[Effect]:
        log = follower._log
        if log.written > log.start or start > log.written:
            return start_anew(follower, start)
        effects: list[Effect] = []
        follower._lower_high_watermark(start - 1, effects)
        return [*effects, follower._reset(start)]

    code.replace(Leader, "_compare", strict)
    code.replace(Follower, "_start_anew", lower)


def _cut_forgets_what_was_synced(code: Mutation) -> None:
    """What was synced while a cut was waited for counts no more, and nothing syncs it again."""
    cut = LogState._cut

    def forgetful(log: LogState, event: Truncated | WasReset) -> None:
        synced = log.synced
        cut(log, event)
        if isinstance(event, Truncated):
            log.synced = min(synced, event.upto)

    code.replace(LogState, "_cut", forgetful)


def _dedup_state_is_not_asked_for(code: Mutation) -> None:
    """Who has the records is in sync, whatever it remembers of those that were removed before."""
    fetched = Peer.fetched

    def trust(peer: Peer, fetch: Fetch, *, agreed: bool, dedup_agrees: bool | None) -> None:
        fetched(peer, fetch, agreed=agreed, dedup_agrees=True)
        del dedup_agrees

    code.replace(Peer, "fetched", trust)


def _dedup_state_counts_unsaved(code: Mutation) -> None:
    """What has come from the leader counts before a start would find it again."""
    mark = Node.dedup_mark

    def hasty(node: Node) -> DedupMark:
        return replace(mark(node), saved=True)

    code.replace(Node, "dedup_mark", hasty)


def _records_go_before_their_ids_are_saved(code: Mutation) -> None:
    """Retention deletes what nothing else remembers."""
    code.replace(Node, "save_snapshot", lambda _: None)


class Twin(NamedTuple):
    """A way to be wrong.

    Attributes:
        spoil: Makes it so.
        seed: Has shown it; tried first, for some take hundreds of others.
        retaining: In a world where much is deleted.
    """

    spoil: Callable[[Mutation], None]
    seed: int
    retaining: bool = False


TWINS: Final = {
    "ack before fsync": Twin(_ack_before_fsync, seed=101),
    "truncation to the high watermark": Twin(_truncation_to_the_high_watermark, seed=0),
    "answer with the asker's epoch": Twin(_answer_with_the_askers_epoch, seed=1),
    "rejoin at the high watermark": Twin(_rejoin_at_the_high_watermark, seed=994),
    "rejoin by recency": Twin(_rejoin_by_recency, seed=5),
    "shrink before commit": Twin(_shrink_before_commit, seed=0),
    "additions do not count": Twin(_additions_do_not_count, seed=257),
    "refusal ends an addition": Twin(_refusal_ends_an_addition, seed=135),
    "lease not watched": Twin(_lease_not_watched, seed=23),
    "lease without metadata": Twin(_lease_without_metadata, seed=22),
    "older epochs count": Twin(_older_epochs_count, seed=0),
    "cut beside an append": Twin(_cut_beside_an_append, seed=2),
    "epoch starts one early": Twin(_epoch_starts_one_early, seed=2),
    "same epoch again": Twin(_same_epoch_again, seed=137),
    "leads with a hole": Twin(_leads_with_a_hole, seed=22),
    "alone over any hole": Twin(_alone_over_any_hole, seed=8),
    "holes looked at when found": Twin(_holes_looked_at_when_found, seed=5),
    "empty epoch kept": Twin(_empty_epoch_kept, seed=349),
    "late syncs believed": Twin(_late_syncs_believed, seed=70),
    "lower high watermark not saved": Twin(_lower_high_watermark_not_saved, seed=329),
    "commits below the minimum": Twin(_commits_below_the_minimum, seed=9),
    "read-only not told": Twin(_read_only_not_told, seed=0),
    "later start is divergence": Twin(_later_start_is_divergence, seed=156),
    "failed patch waited for": Twin(_failed_patch_waited_for, seed=24),
    "empty logs begin again": Twin(_empty_logs_begin_again, seed=701460),
    "cut forgets what was synced": Twin(_cut_forgets_what_was_synced, seed=5011),
    "dedup state is not asked for": Twin(_dedup_state_is_not_asked_for, seed=31, retaining=True),
    "dedup state counts unsaved": Twin(_dedup_state_counts_unsaved, seed=126, retaining=True),
    "records go before their ids are saved": Twin(_records_go_before_their_ids_are_saved, seed=12),
    "disagreement counts": Twin(_disagreement_counts, seed=7),
}
