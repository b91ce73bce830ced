"""Requests to several collectors as one, asked on real sockets of workers that are made up."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.collector import worker_control
from penstock.collector.control import Action, ControlServer, asking
from penstock.collector.worker_control import WorkerControl
from penstock.service import ConfigError, Health, Status
from tests.support.waiting import wait_until_async

LINES = 50


class Made:
    """A worker that notes what it is asked."""

    def __init__(self) -> None:
        self.refuses = False
        self.cannot_go_back = False
        self.hangs = False
        self.generation = 1
        self.shown = 0
        self.text = ""
        self.asked: list[Mapping[str, Any]] = []

    @property
    def actions(self) -> dict[str, Action]:
        return {
            "reload": self.reload,
            "replay": self.replay,
            "quarantine": self.quarantine,
            "tap": self.tap,
        }

    async def reload(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        self.asked.append(request)
        if self.hangs:
            await asyncio.Event().wait()
        if self.refuses or ("undo" in request and self.cannot_go_back):
            report = {"result": "refused", "generation": self.generation}
            yield {"ok": False, "error": "the port is taken", "report": report}
            return
        self.generation += 1
        yield {"ok": True, "report": {"result": "applied", "generation": self.generation}}

    async def replay(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        self.asked.append(request)
        stopped = "full" if self.refuses else ""
        yield {"ok": True, "replayed": 3, "before": 1, "unknown": 0, "stopped": stopped}

    async def quarantine(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        yield {"kept": {"offset": self.generation, "raw": self.text}}
        yield {"ok": True}

    async def tap(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        for number in range(LINES):
            self.shown = number + 1
            yield {"record": str(number)}
        await asyncio.Event().wait()


@asynccontextmanager
async def workers(
    directory: Path, *made: Made, wrong: Exception | None = None
) -> AsyncIterator[Path]:
    """Their common socket."""

    def check() -> None:
        if wrong is not None:
            raise wrong

    paths = {index: directory / f"{index}.sock" for index in range(len(made))}
    servers = [ControlServer(paths[i], one.actions) for i, one in enumerate(made)]
    control = WorkerControl(
        paths,
        check=check,
        status=lambda: Status("collector", "c", "1", Health.READY),
    )
    servers.append(ControlServer(directory / "all.sock", control.actions))
    for server in servers:
        await server.start()
    yield directory / "all.sock"
    for server in servers:
        await server.close()


async def answers(path: Path, **request: Any) -> list[dict[str, Any]]:
    return [line async for line in asking(path, request)]


async def test_a_reload_is_everybodys(tmp_path: Path) -> None:
    async with workers(tmp_path, Made(), Made()) as path:
        [answer] = await answers(path, do="reload")
    applied = {"result": "applied", "generation": 2}
    assert answer["ok"]
    assert answer["report"] == {
        "result": "applied", "error": "", "workers": {"0": applied, "1": applied}
    }  # fmt: skip


@pytest.mark.parametrize("who", [0, 1])
async def test_what_one_refuses_the_others_take_back(tmp_path: Path, who: int) -> None:
    made = [Made(), Made(), Made()]
    made[who].refuses = True
    async with workers(tmp_path, *made) as path:
        [answer] = await answers(path, do="reload")
    assert not answer["ok"]
    assert answer["error"] == f"worker {who}: the port is taken"
    for index, one in enumerate(made):
        undone = [{"do": "reload", "undo": 2}] if index != who else []
        assert one.asked == [{"do": "reload"}, *undone]


async def test_one_that_cannot_go_back_is_named(tmp_path: Path) -> None:
    made = [Made(), Made()]
    made[0].refuses = made[1].cannot_go_back = True
    async with workers(tmp_path, *made) as path:
        [answer] = await answers(path, do="reload")
    assert "worker 1 could not go back: the port is taken" in answer["error"]


async def test_nobody_is_asked_to_run_by_what_is_wrong_for_all(tmp_path: Path) -> None:
    made = Made()
    wrong = ConfigError("batch: no such key", fix="remove it")
    async with workers(tmp_path, made, wrong=wrong) as path:
        [answer] = await answers(path, do="reload")
    assert not answer["ok"]
    assert "no such key" in answer["error"]
    assert made.asked == []


async def test_one_that_does_not_answer_refuses(tmp_path: Path) -> None:
    made = Made()
    async with workers(tmp_path, made, Made()) as path:
        (tmp_path / "1.sock").unlink()
        [answer] = await answers(path, do="reload")
    assert answer["error"].startswith("worker 1: no collector answers")
    assert made.asked[-1] == {"do": "reload", "undo": 2}


async def test_a_replay_adds_up(tmp_path: Path) -> None:
    made = [Made(), Made()]
    made[1].refuses = True
    async with workers(tmp_path, *made) as path:
        [answer] = await answers(path, do="replay", source="app", offsets=[])
        [refused] = await answers(path, do="replay", offsets=[5])
        kept = await answers(path, do="quarantine")
    assert made[0].asked == made[1].asked == [{"do": "replay", "source": "app", "offsets": []}]
    assert (answer["replayed"], answer["before"]) == (6, 2)
    assert answer["stopped"] == "worker 1: full"
    assert set(answer["workers"]) == {"0", "1"}
    assert not refused["ok"]
    assert [line["kept"]["worker"] for line in kept if "kept" in line] == [0, 1]


async def test_one_that_hangs_holds_up_no_reload_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_control, "RELOAD_ANSWER_S", 0.05)
    made = Made()
    made.hangs = True
    async with workers(tmp_path, made) as path, asyncio.timeout(30):
        [first] = await answers(path, do="reload")
        [second] = await answers(path, do="reload")
    assert not first["ok"]
    assert first["error"] == second["error"]
    assert first["error"].startswith("worker 0: no answer within 0.05 s")


async def test_a_reload_that_fails_as_nobody_foresaw_is_refused_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(worker_control, "notify", lambda **state: told.append(state))
    made = Made()
    async with workers(tmp_path, made, wrong=RecursionError("too deep")) as path:
        [answer] = await answers(path, do="reload")
    assert not answer["ok"]
    assert "too deep" in answer["error"]
    assert told == [{"READY": 1}]  # else systemd waits for the end of the reload
    assert made.asked == []


async def test_a_look_that_nobody_reads_any_more_ends(tmp_path: Path) -> None:
    made = [Made(), Made()]
    async with workers(tmp_path, *made):
        control = WorkerControl(
            {0: tmp_path / "0.sock", 1: tmp_path / "1.sock"},
            check=lambda: None,
            status=lambda: Status("collector", "c", "1", Health.READY),
        )
        look = control.tap({"do": "tap", "follow": True})
        assert "record" in await anext(look)
        await wait_until_async(lambda: all(one.shown == LINES for one in made))
        for _ in range(100):  # those who read have room for two, and wait
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await look.aclose()  # type: ignore[attr-defined]


async def test_the_largest_message_in_quarantine_is_shown(tmp_path: Path) -> None:
    made = Made()
    made.text = "\\xff" * (7 << 20)  # so many bytes that are no text, as they are shown
    async with workers(tmp_path, made) as path:
        kept, last = await answers(path, do="quarantine")
    assert kept["kept"] == {"offset": 1, "raw": made.text, "worker": 0}
    assert last["ok"]
