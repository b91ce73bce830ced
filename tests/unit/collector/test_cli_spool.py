"""Delivering the spools of a collector and of its workers, one after another."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.base.errors import DrainCutShortError
from penstock.collector.agent import agent
from penstock.collector.cli.spool import spool
from penstock.collector.config import CollectorConfig

Run = Callable[[Path, asyncio.Event, float | None], Awaitable[None]]
"""What an agent does, given its data directory, when to stop, and how long it may take."""


@pytest.fixture
def drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Drains a data directory with three workers' own in it, by agents that do what is told."""
    data = tmp_path / "data"
    for index in (1, 2, 3):
        (data / "workers" / str(index)).mkdir(parents=True)
    config = tmp_path / "collector.yaml"
    config.write_text(f"data_dir: {data}\nsources: [{{type: stdin, service: app}}]\n")

    def drain(run: Run, *options: str) -> Result:
        class Fake:
            """Stands for an agent."""

            def __init__(self, config: CollectorConfig, _: Path, *, receives: bool) -> None:
                assert not receives
                self._directory = config.data_dir

            async def run(self, stop: asyncio.Event, *, within_s: float | None) -> None:
                await run(self._directory.relative_to(data), stop, within_s)

        # The command's own part is meant: in which order it drains, and what it says of a failure.
        monkeypatch.setattr(agent, "Agent", Fake)
        return CliRunner().invoke(spool, ["drain", "--config", str(config), *options])

    return drain


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_that_is_interrupted_goes_on_to_no_other_worker(
    drain: Callable[..., Result], number: signal.Signals
) -> None:
    drained: list[Path] = []

    async def run(directory: Path, stop: asyncio.Event, _: float | None) -> None:
        drained.append(directory)
        if directory.name == "1":
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stop.wait(), 60)

    result = drain(run)
    assert result.exit_code == 75
    assert drained == [Path(), Path("workers/1")]
    assert "workers/2" in result.output
    assert "workers/3" in result.output


def test_a_drain_is_of_all_workers_also_when_one_has_not_delivered(
    drain: Callable[..., Result],
) -> None:
    drained: list[Path] = []

    async def run(directory: Path, _: asyncio.Event, within_s: float | None) -> None:
        drained.append(directory)
        assert within_s == 5
        if directory == Path():
            raise DrainCutShortError("1 record is still held", fix="again")

    result = drain(run, "--timeout", "5")
    assert result.exit_code == 75, result.output
    assert "1 record is still held" in result.output
    assert drained == [Path(), *(Path(f"workers/{index}") for index in (1, 2, 3))]
