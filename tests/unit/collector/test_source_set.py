"""Sources that fail begin again, and are exchanged while the others go on."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.collector import source_set
from penstock.collector.core.batch import Limits
from penstock.collector.core.delivery import Delivery
from penstock.collector.core.files import Generations
from penstock.collector.core.ledger import Ledger
from penstock.collector.core.restarts import Restarts
from penstock.collector.courier import Courier
from penstock.collector.descriptors import Descriptors
from penstock.collector.pipeline import Chunk
from penstock.collector.runner import Runner, Surroundings
from penstock.collector.source_sections import FileSource, StatsdSource, StdinSource
from penstock.collector.source_set import Difference, SourceSet, difference
from penstock.collector.sources.file import FileSource as Tailing
from penstock.collector.sources.source import Source
from penstock.service import UnavailableError
from tests.support.waiting import wait_until_async

Section = StdinSource | StatsdSource


def section(name: str, service: str = "app") -> Section:
    return StdinSource(type="stdin", name=name, service=service)


class Fake(Source):
    """A source that notes what becomes of it."""

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

    def __init__(self) -> None:
        self.story: list[str] = []
        self.cannot_start: set[str] = set()
        self.hangs: set[str] = set()
        self.failures: dict[str, bool] = {}
        self.ledger = Ledger()
        self.around = Surroundings(
            lambda made: Fake(self, cast("Section", made)),
            Delivery(Limits(), jitter=lambda: 0.0),
            self.ledger,
            SystemClock(),
        )

    def note(self, fake: Fake, what: str) -> None:
        self.story.append(f"{what} {fake.name}/{fake.service}")


async def running(world: World, *sections: Section) -> SourceSet:
    sources = SourceSet(world.around)
    await sources.start(sections)
    sources.run()
    await asyncio.sleep(0)
    world.story.clear()
    return sources


async def test_a_source_that_fails_is_made_anew_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Restarts, "failed", lambda self, *, ran_ns: 1)
    world = World()
    world.failures["a"] = True
    sources = SourceSet(world.around)
    await sources.start([section("a"), section("b")])
    sources.run()
    await wait_until_async(lambda: world.story.count("run a/app") == 2)
    assert world.story.count("run b/app") == 1
    assert [runner.trouble for runner in sources.runners] == ["", ""]
    assert world.ledger["a"].notes["failures"] == 1
    assert not sources.ended.is_set()
    await sources.stop()
    await sources.cancel()


async def test_a_source_that_does_not_stop_holds_up_no_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_set, "_STOP_WAIT_S", 0.01)
    world = World()
    world.hangs.add("a")
    before, after = [section("a"), section("b")], [section("b")]
    sources = await running(world, *before)
    await sources.change(after, difference(before, after))
    assert world.story == ["stop a/app", "gave up a/app"]
    await sources.stop()
    await sources.cancel()


async def test_sources_that_do_not_stop_are_waited_for_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_set, "_STOP_WAIT_S", 0.3)
    world = World()
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


async def test_one_that_began_in_vain_and_does_not_stop_holds_up_no_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_set, "_STOP_WAIT_S", 0.01)
    world = World()
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


async def test_one_that_cannot_begin_again_is_named_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Restarts, "failed", lambda self, *, ran_ns: 1)
    world = World()
    world.failures["a"] = True
    sources = SourceSet(world.around)
    await sources.start([section("a")])
    world.cannot_start.add("app")
    sources.run()
    (runner,) = sources.runners
    await wait_until_async(lambda: "port is taken" in runner.trouble)
    world.cannot_start.clear()
    await wait_until_async(lambda: not runner.trouble)
    await sources.stop()
    await sources.cancel()


def test_waits_double_up_to_a_bound_and_begin_anew_after_a_calm_time() -> None:
    restarts = Restarts(first_ns=1, longest_ns=5, calm_ns=100)
    assert [restarts.failed(ran_ns=0) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert restarts.failed(ran_ns=100) == 1
    assert restarts.count == 6


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


class Files:
    """Makes file sources of one file, whose records are delivered when it is said."""

    def __init__(self, path: Path) -> None:
        self.section = FileSource(
            type="file", name="f", include=(str(path),), service="app", poll_ms=10
        )
        self.lines: list[str] = []
        self.undelivered = False
        self._generations = Generations()
        delivery = Delivery(Limits(), jitter=lambda: 0.0)
        delivery.is_pending = lambda source: self.undelivered  # type: ignore[method-assign]
        self._clock = SystemClock()
        effect = cast("Any", None)
        self._courier = Courier(delivery, self._clock, publish=effect, quarantine=effect)
        self._ledger = Ledger()
        self.around = Surroundings(self._make, delivery, self._ledger, self._clock)

    def _make(self, made: Any) -> Source:
        if made.type != "file":
            return Fake(World(), made)
        return Tailing(
            made, {}, self._generations, pipeline=cast("Any", self), courier=self._courier,
            ledger=self._ledger, clock=self._clock, save=self._save, first_time=False,
            descriptors=Descriptors(1000, self._clock),
        )  # fmt: skip

    async def _save(self) -> bool:
        return True

    async def take(self, chunk: Chunk) -> None:
        self.lines += [json.loads(line)["body"] for line in chunk.lines]


@pytest.mark.parametrize("before", ["", "in vain", "once"])
async def test_a_file_source_that_comes_back_while_it_leaves_reads_on(
    tmp_path: Path, before: str
) -> None:
    path = tmp_path / "a.log"
    write(path, "one\ntwo\n")
    files = Files(path)
    sources = SourceSet(files.around)
    await sources.start([files.section])
    sources.run()
    await wait_until_async(lambda: files.lines == ["one", "two"])
    files.undelivered = True
    await sources.change([], Difference((), (), (), ("f",)))
    if before == "in vain":
        twice = [files.section, section("other", "taken")]
        with (
            patch.object(Fake, "start", side_effect=UnavailableError("taken", fix="free it")),
            pytest.raises(UnavailableError),
        ):
            await sources.change(twice, Difference((), ("f", "other"), (), ()))
        assert len(sources.file_sources) == 1, "it still leaves"
    if before == "once":
        await sources.change([files.section], Difference((), ("f",), (), ()))
        await sources.change([], Difference((), (), (), ("f",)))
    await sources.change([files.section], Difference((), ("f",), (), ()))
    assert len(sources.file_sources) == (3 if before == "once" else 2)
    write(path, "one\ntwo\nthree\n")
    files.undelivered = False
    await wait_until_async(lambda: "three" in files.lines)
    assert files.lines == ["one", "two", "three"]
    [source] = sources.file_sources
    assert [state.generation for state in source.states] == [1]
    await sources.stop()
    await sources.cancel()


def write(path: Path, text: str) -> None:
    path.write_text(text)


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
    runner = Runner(cast("Any", section("a")), world.around)
    await runner.stop()
    await asyncio.wait_for(runner.run(), 5)
    assert world.story == ["stop a/app"]
