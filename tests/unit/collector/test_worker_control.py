"""Requests to several collectors as one, asked on real sockets of workers that are made up."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent.admin import Action, ControlServer, asking
from penstock.collector.agent.workers import WAITS, Checked, Waits, WorkerControl
from penstock.service import ConfigError, Health, Status
from tests.support.waiting import wait_until_async

LINES = 50


class Made:
    """A worker that notes what it is asked."""

    def __init__(self) -> None:
        self.refuses = False
        self.cannot_go_back = False
        self.hangs = False
        self.ends = False
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
        if self.hangs:
            await asyncio.Event().wait()
        stopped = "full" if self.refuses else ""
        yield {"ok": True, "replayed": 3, "before": 1, "unknown": 0, "stopped": stopped}

    async def quarantine(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        yield {"kept": {"offset": self.generation, "raw": self.text}}
        if self.hangs:
            await asyncio.Event().wait()
        yield {"ok": True}

    async def tap(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        self.asked.append(request)
        if self.refuses:
            raise ValueError("every must be a number from 1")
        for number in range(LINES):
            self.shown = number + 1
            yield {"record": str(number)}
        if not self.ends:
            await asyncio.Event().wait()


def control_of(
    paths: Mapping[int, Path],
    *,
    receivers: int,
    check: Callable[[], Checked],
    waits: Waits = WAITS,
) -> WorkerControl:
    return WorkerControl(
        {index: path for index, path in paths.items() if index < receivers},
        draining={index: path for index, path in paths.items() if index >= receivers},
        check=check,
        status=lambda: Status("collector", "c", "1", Health.READY),
        waits=waits,
    )


@asynccontextmanager
async def workers(
    directory: Path,
    *made: Made,
    draining: int = 0,
    wrong: Exception | None = None,
    accept: Callable[[], None] = lambda: None,
    waits: Waits = WAITS,
) -> AsyncIterator[Path]:
    """Their common socket; the last ones are draining."""

    def check() -> Checked:
        if wrong is not None:
            raise wrong
        return "d1", accept

    paths = {index: directory / f"{index}.sock" for index in range(len(made))}
    servers = [ControlServer(paths[i], one.actions) for i, one in enumerate(made)]
    control = control_of(paths, receivers=len(made) - draining, check=check, waits=waits)
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
        assert one.asked == [{"do": "reload", "digest": "d1"}, *undone]


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


async def test_one_that_hangs_holds_up_no_reload_for_ever(tmp_path: Path) -> None:
    made = Made()
    made.hangs = True
    async with workers(tmp_path, made, waits=Waits(reload_s=0.05)) as path, asyncio.timeout(30):
        [first] = await answers(path, do="reload")
        [second] = await answers(path, do="reload")
    assert not first["ok"]
    assert first["error"] == second["error"]
    assert first["error"].startswith("worker 0: no answer within 0.05 s")


async def test_a_reload_that_fails_as_nobody_foresaw_is_refused_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "systemd"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "systemd"))
        async with workers(tmp_path, made, wrong=RecursionError("too deep")) as path:
            [answer] = await answers(path, do="reload")
        systemd.settimeout(20)
        told = [systemd.recv(4096) for _ in range(2)]
    assert not answer["ok"]
    assert "too deep" in answer["error"]
    # Else systemd waits for the end of the reload.
    assert [one.partition(b"=")[0] for one in told] == [
        b"RELOADING",
        b"READY",
    ]
    assert made.asked == []


async def test_a_look_that_nobody_reads_any_more_ends(tmp_path: Path) -> None:
    made = [Made(), Made()]
    async with workers(tmp_path, *made):
        paths = {0: tmp_path / "0.sock", 1: tmp_path / "1.sock"}
        control = control_of(paths, receivers=2, check=lambda: ("d1", lambda: None))
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


async def test_one_that_hangs_holds_up_no_replay_and_no_look_at_the_quarantine(
    tmp_path: Path,
) -> None:
    waits = Waits(replay_s=0.05, line_s=0.05)
    made = [Made(), Made()]
    made[1].hangs = True
    async with workers(tmp_path, *made, waits=waits) as path, asyncio.timeout(30):
        [replayed] = await answers(path, do="replay")
        *kept, last = await answers(path, do="quarantine")
    assert replayed["ok"]
    assert replayed["replayed"] == 3
    assert replayed["stopped"].startswith("worker 1: no answer within 0.05 s")
    assert [line["kept"]["worker"] for line in kept] == [0, 1]
    assert not last["ok"]
    assert last["error"].startswith("worker 1: nothing for 0.05 s")


async def test_a_look_goes_on_at_a_worker_that_was_begun_again(
    tmp_path: Path,
) -> None:
    made = Made()
    made.ends = True
    control = control_of(
        {0: tmp_path / "0.sock"},
        receivers=1,
        check=lambda: ("d1", lambda: None),
        waits=Waits(tap_again_s=0),
    )
    look = control.tap({"do": "tap", "follow": True})
    async with asyncio.timeout(30):
        for _ in range(2):  # the process, and the one after it
            server = ControlServer(tmp_path / "0.sock", made.actions)
            await server.start()
            shown = [await anext(look) for _ in range(LINES)]
            assert [line["record"] for line in shown] == [str(n) for n in range(LINES)]
            await server.close()
        await look.aclose()  # type: ignore[attr-defined]


async def test_a_look_is_at_those_that_drain_too_and_goes_on_without_them(
    tmp_path: Path,
) -> None:
    made = [Made(), Made()]
    made[0].ends = made[1].ends = True
    shown = Counter[int]()
    waits = Waits(tap_again_s=0)
    async with (
        workers(tmp_path, *made, draining=1, waits=waits) as path,
        asyncio.timeout(30),
    ):
        look = asking(path, {"do": "tap", "follow": True})
        async for line in look:
            shown[line["worker"]] += 1
            if shown[1] == LINES and line["worker"] == 1:
                shown[0] = 0
            if shown[1] >= LINES and shown[0] >= 20 * LINES:  # the other was begun anew so often
                break
        await look.aclose()
        for _ in range(100):  # nobody asks any more who would be cut off in the middle
            await asyncio.sleep(0)
    assert (shown[1], len(made[1].asked)) == (LINES, 1)


async def test_a_look_that_is_refused_ends(tmp_path: Path) -> None:
    made = [Made(), Made()]
    made[0].refuses = made[1].refuses = True
    async with workers(tmp_path, *made) as path, asyncio.timeout(30):
        told = await answers(path, do="tap", every=0)
    assert [line["ok"] for line in told] == [False, False]
    assert [len(one.asked) for one in made] == [1, 1]


async def test_what_drains_reloads_too_and_may_be_done(tmp_path: Path) -> None:
    made = [Made(), Made(), Made()]
    async with workers(tmp_path, *made, draining=2) as path:
        (tmp_path / "2.sock").unlink()
        [answer] = await answers(path, do="reload")
        [replayed] = await answers(path, do="replay")
    assert answer["ok"]
    assert set(answer["report"]["workers"]) == {"0", "1"}
    assert made[1].generation == 2
    assert set(replayed["workers"]) == {"0"}, "nothing is put back where all shall leave"


async def test_what_drains_can_refuse(tmp_path: Path) -> None:
    made = [Made(), Made()]
    made[1].refuses = True
    async with workers(tmp_path, *made, draining=1) as path:
        [answer] = await answers(path, do="reload")
    assert answer["error"] == "worker 1: the port is taken"
    assert made[0].asked[-1] == {"do": "reload", "undo": 2}


@pytest.mark.parametrize("refuses", [False, True])
async def test_only_what_all_run_by_is_accepted(tmp_path: Path, *, refuses: bool) -> None:
    accepted: list[int] = []
    made = [Made(), Made()]
    made[1].refuses = refuses
    async with workers(tmp_path, *made, accept=lambda: accepted.append(1)) as path:
        await answers(path, do="reload")
    assert accepted == ([] if refuses else [1])


async def test_a_worker_is_begun_when_it_is_settled_what_all_run_by(tmp_path: Path) -> None:
    made = Made()
    made.hangs = True
    paths = {0: tmp_path / "0.sock"}
    server = ControlServer(paths[0], made.actions)
    await server.start()
    control = control_of(paths, receivers=1, check=lambda: ("d1", lambda: None))
    async with asyncio.timeout(30):
        reload = asyncio.create_task(control.reload_all())
        await wait_until_async(lambda: made.asked)
        settled = asyncio.create_task(control.settled())
        await asyncio.wait([settled], timeout=0.05)
        assert not settled.done()
        await server.close()
        assert (await reload)["result"] == "refused"
        await settled
