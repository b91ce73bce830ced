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
from penstock.collector.agent.worker_control import WAITS, Reloading, Waits, WorkerControl
from penstock.service import ConfigError, Health, Status
from tests.support.waiting import wait_until_async

LINES = 50


class Made:
    """A worker that notes what it is asked."""

    def __init__(self) -> None:
        self.refuses = False
        self.runs_by_it = False
        self.hangs = False
        self.ends = False
        self.generation = 1
        self.restarts = 0
        self.shown = 0
        self.text = ""
        self.asked: list[Mapping[str, Any]] = []

    @property
    def actions(self) -> dict[str, Action]:
        return {
            "replay": self.replay,
            "drops": self.drops,
            "quarantine": self.quarantine,
            "tap": self.tap,
        }

    async def restart(self) -> None:
        """As `Worker.restart`."""
        self.restarts += 1
        if self.refuses:
            raise ConfigError("worker ended with 78", fix="look at its log")

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

    async def drops(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        self.asked.append(request)
        yield {"drop": {"text": self.text}}
        yield {"missed": {"step": "quiet", "records": self.generation}}
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
    check: Callable[[], Reloading],
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
    waits: Waits = WAITS,
) -> AsyncIterator[Path]:
    """Their common socket; the last ones are draining."""

    def check() -> Reloading:
        if wrong is not None:
            raise wrong
        others = {index: one.restart for index, one in enumerate(made) if not one.runs_by_it}
        return Reloading(("batch",) if others else (), others)

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


async def test_a_reload_restarts_each_worker(tmp_path: Path) -> None:
    made = [Made(), Made()]
    async with workers(tmp_path, *made) as path:
        [answer] = await answers(path, do="reload")
    report = answer["report"]
    assert answer["ok"]
    assert (report["result"], report["error"], report["generation"]) == ("applied", "", 2)
    assert (report["workers"], report["keys"]) == ({"0": "applied", "1": "applied"}, ["batch"])
    assert [one.restarts for one in made] == [1, 1]


async def test_a_configuration_that_all_run_by_restarts_nothing(tmp_path: Path) -> None:
    made = [Made(), Made()]
    made[0].runs_by_it = made[1].runs_by_it = True
    async with workers(tmp_path, *made) as path:
        [answer] = await answers(path, do="reload")
    assert (answer["ok"], answer["report"]["result"]) == (True, "unchanged")
    assert [one.restarts for one in made] == [0, 0]


@pytest.mark.parametrize(
    ("who", "result", "restarts", "states"),
    [
        (0, "refused", [1, 0, 0], {"0": "refused", "1": "kept", "2": "kept"}),
        (1, "partial", [1, 1, 0], {"0": "applied", "1": "refused", "2": "kept"}),
        (2, "partial", [1, 1, 1], {"0": "applied", "1": "applied", "2": "refused"}),
    ],
)
async def test_after_one_that_does_not_come_back_no_other_is_restarted(
    tmp_path: Path, who: int, result: str, restarts: list[int], states: dict[str, str]
) -> None:
    made = [Made(), Made(), Made()]
    made[who].refuses = True
    async with workers(tmp_path, *made) as path:
        [answer] = await answers(path, do="reload")
    assert (answer["ok"], answer["exit_code"]) == (False, 78)
    assert "worker ended with 78" in answer["error"]
    assert (answer["report"]["result"], answer["report"]["generation"]) == (result, 1)
    assert answer["report"]["workers"] == states
    assert [one.restarts for one in made] == restarts


async def test_nobody_is_asked_to_run_by_what_is_wrong_for_all(tmp_path: Path) -> None:
    made = Made()
    wrong = ConfigError("batch: no such key", fix="remove it")
    async with workers(tmp_path, made, wrong=wrong) as path:
        [answer] = await answers(path, do="reload")
    assert not answer["ok"]
    assert "no such key" in answer["error"]
    assert made.restarts == 0


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


async def test_drops_of_all_workers_are_found_each_with_its_worker(tmp_path: Path) -> None:
    made = [Made(), Made()]
    made[1].text = "second"
    async with workers(tmp_path, *made) as path:
        found = await answers(path, do="drops", service="shop")
    assert made[0].asked == made[1].asked == [{"do": "drops", "service": "shop"}]
    assert found == [
        {"drop": {"text": "", "worker": 0}},
        {"missed": {"step": "quiet", "records": 1, "worker": 0}},
        {"drop": {"text": "second", "worker": 1}},
        {"missed": {"step": "quiet", "records": 1, "worker": 1}},
        {"ok": True, "workers": [0, 1]},
    ]


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
    assert made.restarts == 0


async def test_a_look_that_nobody_reads_any_more_ends(tmp_path: Path) -> None:
    made = [Made(), Made()]
    async with workers(tmp_path, *made):
        paths = {0: tmp_path / "0.sock", 1: tmp_path / "1.sock"}
        control = control_of(paths, receivers=2, check=lambda: Reloading((), {}))
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
        check=lambda: Reloading((), {}),
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
            if shown[1] >= LINES and shown[0] >= 20 * LINES:  # the other was begun again so often
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


async def test_a_replay_is_not_for_those_that_drain(tmp_path: Path) -> None:
    made = [Made(), Made()]
    async with workers(tmp_path, *made, draining=1) as path:
        [replayed] = await answers(path, do="replay")
    assert set(replayed["workers"]) == {"0"}, "nothing is put back where all shall leave"
