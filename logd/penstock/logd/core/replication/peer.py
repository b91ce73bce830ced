"""What a leader knows of one follower."""

from dataclasses import dataclass

from penstock.logd.core.replication.messages import Fetch


@dataclass(slots=True)
class Peer:
    """A follower as its fetches under the present epoch show it.

    It is behind since the last time at which it is known to have had all of the leader's log.
    So there is a goal: an end that the leader's log had at a certain time. When the follower has
    synced that far, it had everything then, and the next goal is the end as it is now.

    Attributes:
        agreed: Its log is the beginning of the leader's. Nothing else here counts without.
        end: Of its log.
        synced: Everything below is durable there.
        wish: Number of the fetch that wants frames; answers carry it.
        whole: It has no damaged range.
        lost: The controller took it for dead, or out of the ISR, and it has not fetched since.
        lost_ns: When.
        behind_ns: Since when it is behind; None: it has everything.
        remembers: Whether it would tell the repeats that this leader tells; None: not known.
    """

    boot: str = ""
    number: int = -1
    agreed: bool = False
    end: int = 0
    synced: int = 0
    wish: int = -1
    whole: bool = True
    lost: bool = False
    lost_ns: int = 0
    behind_ns: int | None = None
    remembers: bool | None = None
    goal: int = 0
    goal_ns: int = 0

    def is_news(self, fetch: Fetch) -> bool:
        """Whether a fetch is later than those before; a process that starts again counts anew."""
        return fetch.boot != self.boot or fetch.number > self.number

    def fetched(self, fetch: Fetch, *, agreed: bool, remembers: bool | None) -> None:
        """Take what a fetch says."""
        self.remembers = remembers if agreed else None
        self.boot, self.number = fetch.boot, fetch.number
        self.agreed, self.whole, self.lost = agreed, fetch.whole, False
        self.end = fetch.offset
        self.synced = min(fetch.synced, fetch.offset) if agreed else 0
        if fetch.wants:
            self.wish = fetch.number

    def watch(self, log_end: int, now_ns: int) -> None:
        """Compare with where the leader's log ends; called whenever either moves."""
        if self.agreed and self.synced >= log_end:
            self.behind_ns = None
        elif self.behind_ns is None:
            self.behind_ns, self.goal, self.goal_ns = now_ns, log_end, now_ns
        elif self.agreed and self.synced >= self.goal:
            self.behind_ns, self.goal, self.goal_ns = self.goal_ns, log_end, now_ns

    def lose(self, now_ns: int) -> None:
        """The controller does not want it in the ISR."""
        self.lost, self.lost_ns = True, now_ns

    def forgive(self, now_ns: int) -> None:
        """Begin to wait for it anew: it was the leader that did not listen."""
        self.behind_ns = None if self.behind_ns is None else now_ns
        self.goal_ns = now_ns

    def is_late(self, now_ns: int, lag_ns: int) -> bool:
        """Whether it has been behind for too long."""
        return self.lost or (self.behind_ns is not None and now_ns - self.behind_ns >= lag_ns)
