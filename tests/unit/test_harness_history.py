"""The judge of a cluster's history sees each kind of violation, and none where all was kept."""

from dataclasses import dataclass, field

import pytest

from penstock.logd.format.batch import Record
from tests.harness.checkers.history import (
    Given,
    Kind,
    Log,
    Publishing,
    Row,
    Verdict,
    judge,
    judge_group,
)
from tests.harness.ledger import Acked, Item, Keys, Rule, rows_of, value_of

RULES = {
    "order": Rule.ONCE_IN_ORDER,
    "again": Rule.IN_ORDER,
    "once": Rule.ONCE,
    "batches": Rule.BATCHES,
}
PUBLISHING = Publishing(RULES, dict.fromkeys(RULES, Keys.NONE))


def record(item: Item) -> Record:
    return Record("s", value_of(item, Keys.NONE), 7)


@dataclass
class World:
    """Two replicas of a log, what was acked of it, and a reader."""

    items: list[Item] = field(
        default_factory=lambda: [
            Item("order", 0),
            Item("again", 0),
            Item("again", 0),
            Item("once", 1),
            Item("once", 0),
            *(Item("batches", 1, row) for row in range(rows_of("batches", 1))),
            Item("order", 1),
            Item("batches", 2, 0),
        ]
    )
    epochs: dict[int, int] = field(default_factory=dict)
    gone: dict[str, set[int]] = field(default_factory=lambda: {"a": set(), "b": set()})
    swapped: dict[str, dict[int, Item]] = field(default_factory=lambda: {"a": {}, "b": {}})
    start: int = 0
    lost_tail: int = 0
    acked: list[Acked] = field(default_factory=list)
    shown: list[int] | None = None

    def ack(self, item: Item, offset: int) -> None:
        self.acked.append(Acked("s", item, offset, 0))

    def log(self, node: str) -> Log:
        end = len(self.items) - self.lost_tail
        return Log(
            self.start,
            end,
            {
                offset: Row(
                    self.epochs.get(offset, 1),
                    record(self.swapped[node].get(offset, self.items[offset])),
                )
                for offset in range(self.start, end)
                if offset not in self.gone[node]
            },
        )

    def judge(self) -> Verdict:
        offsets = range(len(self.items)) if self.shown is None else self.shown
        reads = {"reader": [(offset, record(self.items[offset])) for offset in offsets]}
        logs = {node: self.log(node) for node in ("a", "b")}
        return judge(self.acked, PUBLISHING, logs, {} if self.start or self.lost_tail else reads)


def whole() -> World:
    """Everything acked."""
    world = World()
    last = {(item.publisher, item.number): at for at, item in enumerate(world.items)}
    for (publisher, number), offset in last.items():
        if (publisher, number) != ("batches", 2):
            world.ack(world.items[offset], offset)
    assert Item(publisher="batches", number=1) in world.items
    return world


def test_nothing_is_wrong_where_everything_was_kept() -> None:
    world = whole()
    verdict = world.judge()
    assert verdict.sound, verdict.told
    acked = verdict.counts["acked"]
    assert acked == 5 + rows_of("batches", 1)
    assert verdict.counts["kept"] == 2 * acked
    assert verdict.counts["stored again, as may be"] == 1


def lost_prefix(world: World) -> None:
    world.start = 1


def lost_tail(world: World) -> None:
    world.lost_tail = 2


def lost_middle(world: World) -> None:
    world.gone["b"].add(3)


def replaced(world: World) -> None:
    world.items[0] = Item("once", 9)


def split(world: World) -> None:
    world.ack(Item("once", 5), 0)


def moved(world: World) -> None:
    world.ack(Item("order", 0), 4)


def duplicated(world: World) -> None:
    world.items.append(Item("once", 0))


def reordered(world: World) -> None:
    world.items.append(Item("order", 3))
    world.items.append(Item("order", 2))


def part_of_a_batch(world: World) -> None:
    world.items.append(Item("batches", 4, 0))


def diverged(world: World) -> None:
    world.swapped["b"][3] = Item("once", 7)


def epoch_fell(world: World) -> None:
    world.epochs[2] = 2


def unknown(world: World) -> None:
    world.items.append(Item("nobody", 1))


def passed_over(world: World) -> None:
    world.shown = [0, 1, 3]


def shown_twice(world: World) -> None:
    world.shown = [0, 1, 1, 2]


def shown_another(world: World) -> None:
    world.swapped["a"][4] = world.swapped["b"][4] = Item("once", 8)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lost_prefix, Kind.LOST_PREFIX),
        (lost_tail, Kind.LOST_TAIL),
        (lost_middle, Kind.LOST_MIDDLE),
        (lost_middle, Kind.DIVERGED),
        (replaced, Kind.REPLACED),
        (split, Kind.SPLIT),
        (moved, Kind.MOVED),
        (duplicated, Kind.DUPLICATED),
        (reordered, Kind.REORDERED),
        (part_of_a_batch, Kind.REORDERED),
        (diverged, Kind.DIVERGED),
        (epoch_fell, Kind.EPOCH_FELL),
        (unknown, Kind.UNKNOWN),
        (passed_over, Kind.MISREAD),
        (shown_twice, Kind.MISREAD),
        (shown_another, Kind.MISREAD),
    ],
)
def test_each_kind_of_violation_is_seen(change: object, kind: Kind) -> None:
    world = whole()
    assert callable(change)
    change(world)
    verdict = world.judge()
    assert not verdict.sound
    assert verdict.counts[kind.name], verdict.told


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ([(1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)], set()),
        ([(1, 0), (1, 2), (1, 3)], {Kind.SKIPPED}),
        ([(1, 0), (2, 2), (2, 3)], {Kind.SKIPPED}),
        ([(1, 0), (1, 1), (1, 2)], {Kind.SKIPPED}),
        ([(1, 0), (1, 1), (1, 2), (1, 1), (1, 2), (1, 3)], set()),
        ([(1, 0), (1, 1), (1, 2), (1, 3), (2, 4)], {Kind.MISREAD}),
    ],
)
def test_a_group_is_given_everything(given: list[tuple[int, int]], kinds: set[Kind]) -> None:
    world = World(items=[Item("order", number) for number in range(4)])
    wrong = record(Item("order", 9))
    records = [wrong if at >= len(world.items) else record(world.items[at]) for _, at in given]
    told = [Given("m", epoch, at, found) for (epoch, at), found in zip(given, records, strict=True)]
    verdict = Verdict()
    judge_group(verdict, told, {"a": world.log("a")})
    assert {kind for kind in Kind if verdict.counts[kind.name]} == kinds, verdict.told
