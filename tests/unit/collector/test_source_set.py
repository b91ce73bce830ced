"""Sources that fail begin again, and are exchanged while the others go on."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from penstock.base.backoff import Backoff, Restarts
from penstock.base.clock import SystemClock
from penstock.collector.delivery.core import Delivery
from penstock.collector.delivery.ordered_queue import Limits
from penstock.collector.ledger import Ledger
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.sources.statsd.source import StatsdSettings
from penstock.collector.sources.stdin import StdinSettings
from penstock.collector.sources.supervisor import (
    STOP_WAIT_S,
    Difference,
    Runner,
    RunnerContext,
    SourceSet,
    difference,
)
from penstock.service import UnavailableError
from tests.support.collector_files import FAR, FilesCollector
from tests.support.waiting import wait_until_async

Section = StdinSettings | StatsdSettings


def section(name: str, service: str = "app") -> Section:
    return StdinSettings(type="stdin", name=name, service=service)


class Fake(Source):
    """A source that notes what becomes of it."""

    settings = StdinSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> "Fake":
        raise NotImplementedError

    def __init__(self, world: "World", section: Section) -> None:
        self.name = str(section.name)
        self.service = section.service
        self._world = world
        self._stopping = asyncio.Event()

    @override
    async def start(self) -> None:
        self._world.note(self, "start")
        if self.service in self._world.cannot_start:
            raise UnavailableError("the port is taken", fix="free it")

    @override
    async def run(self) -> None:
        self._world.note(self, "run")
        if self._world.failures.pop(self.name, None):
            raise OSError("broken")
        await self._stopping.wait()

    @override
    async def stop(self) -> None:
        self._world.note(self, "stop")
        if self.name in self._world.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self._world.note(self, "gave up")
        self._stopping.set()

    @property
    @override
    def endpoint(self) -> str | None:
        return None


class World:
    """Makes fakes."""

    def __init__(self, *, stop_wait_s: float = STOP_WAIT_S) -> None:
        self._stop_wait_s = stop_wait_s
        self.story: list[str] = []
        self.cannot_start: set[str] = set()
        self.hangs: set[str] = set()
        self.failures: dict[str, bool] = {}
        self.ledger = Ledger()
        self.context = RunnerContext(
            lambda made: Fake(self, cast("Section", made)),
            Delivery(Limits(), jitter=lambda: 0.0),
            self.ledger,
            SystemClock(),
            restarts=lambda: Restarts(Backoff(1e-9, 1e-9), calm=60),
        )

    def sources(self) -> SourceSet:
        return SourceSet(self.context, stop_wait_s=self._stop_wait_s)

    def note(self, fake: Fake, what: str) -> None:
        self.story.append(f"{what} {fake.name}/{fake.service}")


async def running(world: World, *sections: Section) -> SourceSet:
    sources = world.sources()
    await sources.start(sections)
    sources.run()
    await asyncio.sleep(0)
    world.story.clear()
    return sources


async def test_a_source_that_fails_is_made_anew_and_the_others_go_on() -> None:
    world = World()
    world.failures["a"] = True
    sources = world.sources()
    await sources.start([section("a"), section("b")])
    sources.run()
    await wait_until_async(lambda: world.story.count("run a/app") == 2)
    assert world.story.count("run b/app") == 1
    assert [runner.trouble for runner in sources.runners] == ["", ""]
    assert world.ledger["a"].notes["failures"] == 1
    assert not sources.ended.is_set()
    await sources.stop()
    await sources.cancel()


async def test_a_source_that_does_not_stop_holds_up_no_exchange() -> None:
    world = World(stop_wait_s=0.01)
    world.hangs.add("a")
    before, after = [section("a"), section("b")], [section("b")]
    sources = await running(world, *before)
    await sources.change(after, difference(before, after))
    assert world.story == ["stop a/app", "gave up a/app"]
    await sources.stop()
    await sources.cancel()


async def test_sources_that_do_not_stop_are_waited_for_at_the_same_time() -> None:
    world = World(stop_wait_s=0.3)
    names = [f"s{number}" for number in range(20)]
    sources = await running(world, *(section(name) for name in names))
    world.hangs.update(names)
    began = asyncio.get_running_loop().time()
    await sources.change([], Difference((), (), (), tuple(names)))
    assert asyncio.get_running_loop().time() - began < 20 * 0.3
    assert world.story == [
        *(f"stop {name}/app" for name in names),
        *(f"gave up {name}/app" for name in names),
    ]


async def test_one_that_began_in_vain_and_does_not_stop_holds_up_no_exchange() -> None:
    world = World(stop_wait_s=0.01)
    before, after = [section("a")], [section("a"), section("b"), section("c", "taken")]
    sources = await running(world, *before)
    world.hangs.add("b")
    world.cannot_start.add("taken")
    with pytest.raises(UnavailableError):
        async with asyncio.timeout(5):
            await sources.change(after, difference(before, after))
    assert world.story[-2:] == ["stop b/app", "gave up b/app"]
    await sources.stop()
    await sources.cancel()


async def test_one_that_cannot_begin_again_is_named_until_it_can() -> None:
    world = World()
    world.failures["a"] = True
    sources = world.sources()
    await sources.start([section("a")])
    world.cannot_start.add("app")
    sources.run()
    (runner,) = sources.runners
    await wait_until_async(lambda: "port is taken" in runner.trouble)
    world.cannot_start.clear()
    await wait_until_async(lambda: not runner.trouble)
    await sources.stop()
    await sources.cancel()


async def test_an_exchange_touches_only_what_changed() -> None:
    world = World()
    before = [section("kept"), section("changed"), section("removed")]
    sources = await running(world, *before)
    after = [section("added"), section("kept"), section("changed", "other")]
    await sources.change(after, difference(before, after))
    await asyncio.sleep(0)
    assert [runner.name for runner in sources.runners] == ["added", "kept", "changed"]
    assert world.story == [
        "start added/app",
        "stop changed/app",
        "stop removed/app",
        "start changed/other",
        "run added/app",
        "run changed/other",
    ]
    assert not sources.ended.is_set()
    await sources.stop()
    await sources.cancel()


@pytest.mark.parametrize("before", ["", "in vain", "once"])
async def test_a_file_source_that_comes_back_while_it_leaves_reads_on(
    tmp_path: Path, before: str
) -> None:
    collector = FilesCollector(tmp_path)
    path = collector.files / "a.log"
    path.write_text("one\ntwo\n")
    files, world = collector.section(), World()
    world.cannot_start.add("taken")
    collector.log.accepts = 0
    async with collector:
        collector.make = lambda made: None if made.type == "file" else world.context.make(made)
        collector.run()
        await wait_until_async(lambda: collector.pending == 2)
        await collector.change()
        if before == "in vain":
            with pytest.raises(UnavailableError):
                await collector.change(files, {"type": "stdin", "service": "taken"})
            assert len(collector.sources.file_sources) == 1, "it still leaves"
        if before == "once":
            await collector.change(files)
            await collector.change()
        await collector.change(files)
        assert len(collector.sources.file_sources) == (3 if before == "once" else 2)
        path.write_text("one\ntwo\nthree\n")
        collector.log.accept(FAR)
        await wait_until_async(lambda: "three" in collector.bodies)
        assert list(await collector.positions()) == [1]
        await collector.stop()
    assert collector.bodies == ["one", "two", "three"]


@pytest.mark.parametrize("which", ["added", "changed"])
async def test_an_exchange_that_fails_leaves_all_as_it_was(which: str) -> None:
    world = World()
    before = [section("kept"), section("changed"), section("removed")]
    sources = await running(world, *before)
    world.cannot_start.add("bad")
    names = {"added": "added", "changed": "changed"}
    services = {name: "bad" if name == which else "good" for name in names}
    after = [section("kept"), *(section(name, services[name]) for name in names)]
    with pytest.raises(UnavailableError):
        await sources.change(after, difference(before, after))
    await asyncio.sleep(0)
    assert sorted(runner.name for runner in sources.runners) == ["changed", "kept", "removed"]
    assert not any(runner.trouble for runner in sources.runners)
    assert "run added/good" not in world.story
    assert [f for f in world.story if f.startswith(("stop kept", "run kept"))] == []
    if which == "added":
        assert world.story == ["start added/bad", "stop added/bad"], "nothing else was touched"
    else:
        assert {"run changed/app", "run removed/app"} <= set(world.story)
    assert not sources.ended.is_set()
    await sources.stop()
    await sources.cancel()


async def test_all_have_ended_only_when_all_have() -> None:
    world = World()
    sources = await running(world, section("a"), section("b"))
    first, second = sources.runners
    await first.source.stop()
    await asyncio.sleep(0)
    assert not sources.ended.is_set()
    await second.source.stop()
    await asyncio.wait_for(sources.ended.wait(), 5)
    await sources.cancel()


def test_a_difference_is_told_by_name_and_content() -> None:
    before = [section("a"), section("b"), section("c")]
    after = [section("d"), section("b", "x"), section("a")]
    assert difference(before, after) == Difference(("a",), ("d",), ("b",), ("c",))


async def test_a_stopped_source_does_not_begin_again() -> None:
    world = World()
    runner = Runner(cast("Any", section("a")), world.context)
    await runner.stop()
    await asyncio.wait_for(runner.run(), 5)
    assert world.story == ["stop a/app"]
