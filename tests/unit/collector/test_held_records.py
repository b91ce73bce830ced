"""Records that transforms hold keep the position of their origin back, and a kill loses none."""

import asyncio
import gzip
import random
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest
from typing_extensions import override

from penstock.collector.agent.derived_config import graph_of, resource_of
from penstock.collector.delivery.core import Delivery, Held, Read, Released
from penstock.collector.delivery.holds import MARKS_MAX, Holds
from penstock.collector.delivery.ordered_queue import Limits
from penstock.collector.drops.sampler import DropSampler
from penstock.collector.limits import FILE_READ_BYTES
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.graph.wiring import wire
from penstock.collector.transforms.transform import (
    PASS,
    DropReason,
    Event,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)
from tests.support.collector_files import FilesCollector
from tests.support.collector_graph import graph_of as graph_of_keys
from tests.support.collector_graph import log, process
from tests.support.waiting import wait_until_async

WINDOW_S = 10
JOINED: dict[str, Any] = {
    "type": "reduce", "inputs": ["file"], "key": "resource.service.name", "window_s": WINDOW_S,
    "merge": {"body": "concat"}, "separator": ",",
}  # fmt: skip
AGAIN = {**JOINED, "inputs": ["joined"], "separator": ";", "count": "again"}


def collector_of(root: Path, **options: Any) -> FilesCollector:
    return FilesCollector(root, **({"transforms": {"joined": JOINED}} | options))


async def window_over(collector: FilesCollector, *, records: int) -> None:
    """Let a window end, and return when the log has so many records."""
    collector.clock.advance(WINDOW_S + 1)
    await wait_until_async(lambda: len(collector.log.records) >= records)


async def at_rest(collector: FilesCollector) -> None:
    """Return when what is due by now is in the log, and what it was made of is held no more."""
    delivery, journal = collector.engine.delivery, collector.engine.spools.bulk.journal
    collector.engine.sender.handle(Held("beside", "nobody", 0))
    await wait_until_async(lambda: delivery.held_at("beside") is None)
    await wait_until_async(
        lambda: not delivery.pending_records and delivery.passed("spool") == journal.durable_offset
    )


async def position(collector: FilesCollector) -> int:
    (found,) = (await collector.positions()).values()
    return found


async def test_a_group_has_the_lines_from_before_a_kill(tmp_path: Path) -> None:
    collector = collector_of(tmp_path)
    path = collector.files / "a.log"
    path.write_text("1\n2\n")
    async with collector:
        await collector.poll()
        assert (await position(collector), collector.pending) == (0, 0)
    path.write_text("1\n2\n3\n")
    async with collector:
        await collector.poll()
        assert await position(collector) == 0
        await window_over(collector, records=1)
        assert collector.bodies == ["1,2,3"]
        await wait_until_async(lambda: not collector.engine.delivery.holds_anything)
        assert await position(collector) == 6
        assert collector.account().aggregated == 3


async def test_the_position_follows_the_oldest_group(tmp_path: Path) -> None:
    collector = collector_of(tmp_path, transforms={"joined": {**JOINED, "key": "body"}})
    path = collector.files / "a.log"
    async with collector:
        path.write_text("1\n")
        await collector.poll()
        collector.clock.advance(6)
        path.write_text("1\n2\n")
        await collector.poll()
        collector.clock.advance(6)
        await wait_until_async(lambda: collector.bodies == ["1"])
        await wait_until_async(lambda: collector.engine.delivery.held_at("file/1") == 2)
        assert await position(collector) == 2
    async with collector:
        await collector.poll()
        await window_over(collector, records=2)
        assert collector.bodies == ["1", "2"]


async def test_records_beside_a_window_come_once(tmp_path: Path) -> None:
    """They were delivered before the kill, and are met again on the way to the held ones."""
    collector = collector_of(tmp_path, output={"inputs": ["file", "joined"]})
    (collector.files / "a.log").write_text("1\n2\n")
    async with collector:
        await collector.poll()
        assert collector.bodies == ["1", "2"]
        assert await position(collector) == 0
    async with collector:
        await collector.poll()
        await window_over(collector, records=3)
        assert collector.bodies == ["1", "2", "1,2"]


SLOW = {**JOINED, "window_s": 600, "count": "slow"}


def made(collector: FilesCollector, count: str = "reduce.records") -> list[str]:
    """The bodies of the groups of the transform that counts its records so."""
    return [one["body"] for one in collector.log.records if count in one["attributes"]]


@pytest.mark.parametrize("kills", [1, 2, 3])
async def test_a_kill_lets_each_transform_make_again_what_it_held_itself(
    tmp_path: Path, kills: int
) -> None:
    """Also where the next kill comes before what the slow one holds is read, or right after it."""
    collector = collector_of(tmp_path, transforms={"joined": JOINED, "slow": SLOW})
    path = collector.files / "a.log"
    async with collector:
        path.write_text("1\n2\n")
        await collector.poll()
        await window_over(collector, records=1)
        path.write_text("1\n2\n3\n")
        await collector.poll()
        assert await position(collector) == 0
    if kills > 1:
        async with collector:
            assert await collector.save()
    if kills > 2:
        async with collector:
            await collector.poll()
            assert await collector.save()
    async with collector:
        await collector.poll()
        await window_over(collector, records=2)
        account = collector.account()
        assert (account.aggregated, account.difference) == (6, 0)
        await collector.stop()
    assert (made(collector), made(collector, "slow")) == (["1,2", "3"], ["1,2,3"])


@pytest.mark.parametrize("is_kill", [True, False])
async def test_an_end_before_all_of_a_file_is_read_again_gives_no_transform_a_record_twice(
    tmp_path: Path, is_kill: bool
) -> None:
    """The file stays known by what was read of it before the first kill."""
    collector = collector_of(tmp_path, transforms={"joined": JOINED, "slow": SLOW})
    lines = [f"{number:03}" + "x" * 1000 for number in range(2 * FILE_READ_BYTES // 1000)]
    (collector.files / "a.log").write_text("".join(f"{line}\n" for line in lines))

    def in_groups(count: str) -> int:
        return sum(one["attributes"].get(count, 0) for one in collector.log.records)

    async with collector:
        await collector.poll()
        await window_over(collector, records=1)
        await at_rest(collector)
        assert await position(collector) == 0
    async with collector:
        assert await collector.poll_once(), "more is to be read again"
        if not is_kill:
            await collector.stop_sources()
        assert await position(collector) == 0
    async with collector:
        await collector.poll()
        await collector.stop()
    assert (in_groups("reduce.records"), in_groups("slow")) == (len(lines), len(lines))


async def test_a_kill_lets_each_transform_make_again_what_it_held_of_a_spool(
    tmp_path: Path,
) -> None:
    transforms = {"joined": JOINED, "again": AGAIN, "slow": {**SLOW, "inputs": ["joined"]}}
    collector = collector_of(tmp_path, transforms=transforms)
    path = collector.files / "a.log"
    async with collector:
        for number in (1, 2):
            with path.open("a") as file:
                file.write(f"{number}\n")
            await collector.poll()
            for _ in range(2):  # the line's group, then that group's
                collector.clock.advance(WINDOW_S + 1)
                await at_rest(collector)
        assert (made(collector, "again"), made(collector, "slow")) == (["1", "2"], [])
        assert (await collector.checkpoint()).cursor == 0
    async with collector:
        await collector.stop()
    assert (made(collector, "again"), made(collector, "slow")) == (["1", "2"], ["1,2"])


async def test_a_record_that_a_transform_passes_on_is_not_lost_to_the_next_one(
    tmp_path: Path,
) -> None:
    key = "body.startsWith('p') ? null : resource.service.name"
    slow = {**SLOW, "inputs": ["joined"]}
    collector = collector_of(tmp_path, transforms={"joined": {**JOINED, "key": key}, "slow": slow})
    (collector.files / "a.log").write_text("1\np2\n")
    async with collector:
        await collector.poll()
        collector.clock.advance(WINDOW_S + 1)
        await wait_until_async(lambda: collector.account("joined").aggregated == 1)
        assert (await position(collector), collector.bodies) == (0, [])
    async with collector:
        await collector.poll()
        await collector.stop()
    assert sorted(",".join(made(collector, "slow")).split(",")) == ["1", "p2"]


@pytest.mark.parametrize("is_reload", [False, True])
async def test_records_that_go_another_way_after_a_kill_are_new_to_all_transforms(
    tmp_path: Path, is_reload: bool
) -> None:
    """The transform that held them is gone."""
    apart = {"type": "route", "inputs": ["file"], "routes": {"slow": {"where": "body == 's2'"}}}
    transforms = {
        "apart": apart,
        "joined": {**JOINED, "inputs": ["apart.unmatched"]},
        "slow": {**SLOW, "inputs": ["apart.slow"]},
    }
    collector = collector_of(tmp_path, transforms=transforms)
    (collector.files / "a.log").write_text("1\ns2\n")
    async with collector:
        await collector.poll()
        await window_over(collector, records=1)
        assert await position(collector) == 0
        assert collector.bodies == ["1"]
    after = collector.config.model_copy(
        update={"transforms": collector_of(tmp_path).config.transforms}
    )
    if not is_reload:
        collector.config = after
    async with collector:
        if is_reload:
            collector.engine.pipeline.replace(graph_of(after), resource_of(after))
        await collector.poll()
        await collector.stop()
    assert collector.bodies == ["1", "1,s2"]


async def test_others_get_a_turn_within_a_chunk_and_know_where_it_ends(tmp_path: Path) -> None:
    collector = collector_of(tmp_path)
    path = collector.files / "a.log"
    path.write_text("line\n" * 2000)
    async with collector:
        pipeline = collector.engine.pipeline
        (source,) = collector.sources.file_sources
        polling = asyncio.create_task(source.poll())
        while not collector.account().aggregated:  # noqa: ASYNC110 - a turn, and not a while
            await asyncio.sleep(0)
        assert collector.account().pending > 0, "the chunk is in work"
        assert collector.engine.delivery.reached() == {"file/1": 0, "spool": 0, "spool-urgent": 0}
        assert pipeline.reached()["file/1"] == path.stat().st_size
        await polling


@pytest.mark.parametrize("seed", range(12))
async def test_through_kills_no_transform_loses_a_record_or_gets_again_what_it_had_given_out(
    tmp_path: Path, seed: int
) -> None:
    """Windows of three lengths, and kills behind a checkpoint or long after it.

    A transform is held back at the first line of those that were read together with one it holds.
    """
    dice = random.Random(seed)
    windows = {"short": WINDOW_S, "longer": 60, "longest": 200}
    transforms = {
        name: {**JOINED, "window_s": window_s, "count": name} for name, window_s in windows.items()
    }
    collector = collector_of(tmp_path, transforms=transforms)
    path = collector.files / "a.log"
    path.touch()
    lines: list[str] = []
    first_of: dict[str, str] = {}
    given_out: dict[str, dict[str, int]] = {name: {} for name in windows}
    saved = 0
    for _ in range(6):
        async with collector:
            read = saved
            for _ in range(dice.randrange(1, 8)):
                if dice.random() < 0.7:
                    lines.append(f"{len(lines):03}")
                    path.write_text("".join(f"{line}\n" for line in lines))
                collector.clock.advance(dice.choice((1, 5, 20, 70)))
                await collector.poll()
                first_of |= dict.fromkeys(lines[read:], lines[read] if lines[read:] else "")
                read = len(lines)
            if dice.random() < 0.7:
                await at_rest(collector)
                found = {name: grouped(collector, name) for name in windows}
                await at_rest(collector)
                saved = await position(collector) // len("000\n")
                for name, counts in found.items():
                    held = next((first_of[line] for line in lines if line not in counts), "999")
                    given_out[name] |= {line: n for line, n in counts.items() if line < held}
    async with collector:
        await collector.poll()
        await collector.stop()
    for name in windows:
        counts = grouped(collector, name)
        assert {*counts} == {*lines}, "a record is lost"
        assert {line: counts[line] for line in given_out[name]} == given_out[name]


def grouped(collector: FilesCollector, name: str) -> Counter[str]:
    """How many groups of a transform have each line."""
    return Counter(line for body in made(collector, name) for line in body.split(","))


async def test_a_stop_in_a_window_reads_nothing_again(tmp_path: Path) -> None:
    collector = collector_of(tmp_path)
    (collector.files / "a.log").write_text("1\n2\n")
    async with collector:
        await collector.poll()
        await collector.stop()
    async with collector:
        await collector.poll()
        assert collector.bodies == ["1,2"]
        assert collector.account().received == 0


async def test_a_stop_delivers_what_one_transform_makes_of_the_groups_of_another(
    tmp_path: Path,
) -> None:
    transforms = {"joined": JOINED, "again": AGAIN}
    transforms["third"] = {**JOINED, "inputs": ["again"], "count": "third"}
    collector = collector_of(tmp_path, transforms=transforms)
    (collector.files / "a.log").write_text("1\n2\n")
    async with collector:
        await collector.poll()
        await collector.stop()
        assert collector.bodies == ["1,2"]
    async with collector:
        assert collector.pending == 0


async def test_what_came_through_the_spool_is_read_again_from_there(tmp_path: Path) -> None:
    """The groups of one transform are records of a spool to the next one."""
    collector = collector_of(tmp_path, transforms={"joined": JOINED, "again": AGAIN})
    path = collector.files / "a.log"
    async with collector:
        for line in ("1\n", "1\n2\n"):
            path.write_text(line)
            await collector.poll()
            collector.clock.advance(WINDOW_S + 1)
            await wait_until_async(lambda: collector.engine.delivery.held_at("file/1") is None)
        await wait_until_async(lambda: collector.account("joined").aggregated >= 1)
        held = (await collector.checkpoint()).cursor
        assert held == collector.engine.delivery.held_at("spool")
    bodies = list(collector.bodies)
    async with collector:
        assert collector.account("joined").recovered >= 1
        await wait_until_async(lambda: collector.account("joined").aggregated >= 1)
        await window_over(collector, records=len(bodies) + 1)
        assert sorted(";".join(collector.bodies).split(";")) == ["1", "2"]


async def test_a_spool_that_runs_full_is_held_back_no_more(tmp_path: Path) -> None:
    """Else the transforms' groups would wait for room that waits for them."""
    collector = collector_of(
        tmp_path, transforms={"joined": JOINED, "again": {**AGAIN, "window_s": 3600}},
        spool={"max_bytes": 1 << 20},
    )  # fmt: skip
    path = collector.files / "a.log"
    async with collector:
        text = ""
        for _ in range(40):
            text += "".join(f"{'x' * 10_000}\n" for _ in range(3))
            path.write_text(text)
            await collector.poll()
            collector.clock.advance(WINDOW_S + 1)
            await wait_until_async(lambda: collector.engine.delivery.held_at("file/1") is None)
            await collector.save()
        assert collector.account("spool").notes["holds_let_go"] >= 1
        assert collector.account("joined").dropped.total() == 0


async def test_a_source_that_is_exchanged_goes_on_where_it_was(tmp_path: Path) -> None:
    """Nothing is read twice, and the checkpoint stays at what is held."""
    collector = collector_of(tmp_path)
    path = collector.files / "a.log"
    path.write_text("1\n")
    async with collector:
        await collector.poll()
        collector.run()
        await collector.change(collector.section(poll_ms=20))
        path.write_text("1\n2\n")
        await wait_until_async(lambda: collector.account().aggregated == 2)
        assert await position(collector) == 0
        await window_over(collector, records=1)
        assert collector.bodies == ["1,2"]


async def test_a_kill_loses_nothing_held_of_a_file_that_was_compressed(tmp_path: Path) -> None:
    """It was set aside for another one, and all of it had been read."""
    section = {
        "type": "file", "include": [f"{tmp_path}/files/*.log"], "service": "app",
        "rotate_wait_s": 0,
    }  # fmt: skip
    collector = collector_of(
        tmp_path, sources=[section], transforms={"slow": SLOW}, descriptors={"max_files": 1}
    )
    path = collector.files / "a.log"
    async with collector:
        path.write_text("1\n2\n")
        await collector.poll()
        (collector.files / "b.log").write_text("3\n")
        await collector.poll()
        (source,) = collector.sources.file_sources
        assert [tail.set_aside for tail in source.tails] == [True, False]
        path.with_name("a.log.1.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        for _ in range(3):
            await collector.poll()
            collector.clock.advance(60)
        assert [*(await collector.positions()).values()] == [0, 0]
    async with collector:
        await collector.poll()
        collector.clock.advance(60)
        await collector.poll()
        await collector.stop()
    assert sorted(",".join(made(collector, "slow")).split(",")) == ["1", "2", "3"]


async def test_a_file_is_removed_when_nothing_of_it_is_held(tmp_path: Path) -> None:
    root = tmp_path / "files"
    section = {
        "type": "file", "include": [f"{root}/*.log"], "service": "app", "remove_after_s": 0,
    }  # fmt: skip
    collector = collector_of(tmp_path, sources=[section])
    path = collector.files / "a.log"
    path.write_text("1\n")
    async with collector:
        await collector.poll()
        await collector.poll()
        assert path.exists()
        await window_over(collector, records=1)
        await wait_until_async(lambda: not collector.engine.delivery.holds_anything)
        await collector.poll()
        assert not path.exists()


# The marks.


def test_marks_release_no_record_too_early() -> None:
    """Compared with all positions and times, on random input."""
    dice = random.Random(7)
    for _ in range(50):
        holds, taken = Holds(), list[tuple[int, int]]()
        now_ns = place = 0
        for _ in range(400):
            now_ns += dice.randrange(3)
            place += dice.randrange(3)
            holds.hold("o", "t", place, now_ns)
            taken.append((place, now_ns))
            if dice.random() < 0.02:
                before_ns = dice.randrange(now_ns + 1)
                holds.release({"t": before_ns}, now_ns)
                taken = [one for one in taken if one[1] >= before_ns]
            held = holds.position("o")
            assert not taken or (held is not None and held <= taken[0][0])
        holds.release({}, now_ns + 1)
        assert holds.position("o") is None
        assert not holds


def test_marks_are_bounded_and_hold_back_little_more_than_they_must() -> None:
    holds = Holds()
    for turn in range(100 * MARKS_MAX):
        holds.hold("o", "t", turn, turn)
    total = 100 * MARKS_MAX
    for before in range(total):
        holds.release({"t": before}, total)
        held = holds.position("o")
        assert held is not None
        assert before - held <= 4 * total // MARKS_MAX


def test_after_a_long_hold_a_position_is_as_near_again_as_before_it() -> None:
    holds, stall, held_s = Holds(), 3600, 10
    for second in range(stall):
        holds.hold("o", "t", second, second)
    for second in range(stall, stall + 10 * held_s):
        holds.hold("o", "t", second, second)
        holds.release({"t": second - held_s}, second)
    position = holds.position("o")
    assert position is not None
    assert second - position <= held_s + 4


@pytest.mark.parametrize("forgets", [False, True])
def test_the_cursor_is_that_of_the_oldest_held_record(forgets: bool) -> None:
    delivery = Delivery(Limits(), jitter=lambda: 0)
    delivery.handle(Read("o", 9), 1)
    delivery.handle(Held("o", "t", 4), 10)
    delivery.handle(Held("o", "late", 5), 10)
    delivery.handle(Held("other", "late", 1), 10)
    assert (delivery.cursor("o"), delivery.passed("o"), delivery.held_at("o")) == (4, 9, 4)
    revision = delivery.revision
    if forgets:
        assert delivery.let_go("o")
    else:
        delivery.handle(Released({"late": 10}, 11), 12)
        assert (delivery.cursor("o"), delivery.held_at("o")) == (5, 5)
        delivery.handle(Released({}, 11), 12)
    assert delivery.revision > revision
    assert (delivery.cursor("o"), delivery.held_at("o")) == (9, None)
    assert delivery.holds_anything is forgets
    assert not delivery.let_go("o")


def test_records_are_new_from_where_a_transform_holds_them_or_else_from_what_is_done() -> None:
    noted = {"o": {"": 7, "late": 2}, "unread": {"": 3}}
    delivery = Delivery(Limits(), jitter=lambda: 0, noted=noted)
    assert delivery.new_from("o") == delivery.noted("o") == noted["o"]
    delivery.handle(Read("o", 2), 1)
    assert delivery.new_from("o") == noted["o"], "what is met again is not new"
    delivery.handle(Held("o", "late", 4), 1)
    delivery.handle(Held("o", "early", 4), 1)
    delivery.handle(Read("o", 9), 1)
    assert delivery.new_from("o") == {"": 9, "late": 4, "early": 7}
    delivery.handle(Released({"late": 1}, 2), 2)
    assert delivery.new_from("o") == {"": 9, "late": 4}
    delivery.handle(Released({}, 3), 3)
    assert (delivery.new_from("o"), delivery.noted("o")) == ({}, {}), "reading begins behind it"
    assert delivery.new_from("unread") == noted["unread"]
    delivery.forget("unread")
    assert delivery.new_from("unread") == {}


POINT: dict[str, Any] = {
    "schema": "metric/1.1", "kind": "metric", "name": "n", "unit": "1", "value": 1,
    "metric_type": "sum", "is_monotonic": True, "temporality": "delta", "start_time_unix_nano": 1,
}  # fmt: skip
SPAN: dict[str, Any] = {
    "schema": "span/1.0", "kind": "span", "name": "x", "span_id": "0123456789abcdef",
    "trace_id": f"{1:032x}", "end_time_unix_nano": 2, "status_code": "UNSET",
}  # fmt: skip


@pytest.mark.parametrize(
    "section",
    [
        {"type": "reduce", "key": "body.startsWith('p') ? null : kind"},
        {"type": "aggregate"},
        {"type": "tail_sample"},
        {"type": "logs_to_metrics", "name": "n"},
    ],
    ids=lambda section: str(section["type"]),
)
@pytest.mark.parametrize("others", [False, True])
def test_what_a_transform_takes_in_it_does_not_get_again_and_all_else_goes_on(
    section: dict[str, Any], others: bool
) -> None:
    lines = [
        log("1"), log("p2"), log(**POINT), log(**POINT | {"value": "NaN"}), log(**SPAN),
    ]  # fmt: skip
    keys = {"transforms": {"t": {**section, "inputs": ["app"]}}}
    first = process(graph_of_keys(keys), *lines)
    assert (first.refused, first.ended[DropReason.AGGREGATED] > 0) == ([], True)
    met = {"": 0, "t": len(lines)} if not others else {"": len(lines), "u": 0}
    graph = graph_of_keys(keys)
    again = process(graph, *lines, met=met)
    assert (again.held, again.ended[DropReason.AGGREGATED]) == (set(), 0)
    assert again.ended[DropReason.REPEATED] == first.ended[DropReason.AGGREGATED]
    assert again.batches == first.batches
    assert graph.counts()["t"]["repeated"] == again.ended[DropReason.REPEATED]
    assert graph.flush(1, 1, everything=True) == {}
    new = process(graph, *lines, first=len(lines) + 1, met=met)
    assert new.ended == first.ended


class Asked(Transform):
    """Has all that a sampler has that defers, and counts who asks since when it holds records."""

    settings = TransformSettings
    outputs = (PASS,)
    interval_ns = 1
    asked = 0

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        return DropReason.AGGREGATED

    def flush(self, now_ns: int, unix_ns: int, *, everything: bool = False) -> list[Fields]:
        return []

    def dropped(self) -> list[tuple[str, Fields]]:
        return []

    @property
    @override
    def held_since_ns(self) -> int | None:
        self.asked += 1
        return None


def test_no_record_costs_a_look_at_what_a_transform_holds() -> None:
    """A look whether a transform is of a protocol reads its properties."""
    asked = Asked()
    wiring = wire(["app"], {"t": asked.outputs}, {"t": ["app"]}, None)
    graph = Graph(wiring, {"t": asked}, prefix="telemetry", template=None, scrubber=None)
    before = asked.asked
    outcome = process(graph, *[log()] * 100, sampler=DropSampler(1000, 100))
    assert (outcome.held, outcome.drops) == ({"t"}, []), "it may give them out later"
    assert asked.asked == before
