"""Delivering the spools of a collector and of its workers, one after another."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.collector import agent
from penstock.collector.cli_spool import spool
from penstock.collector.config import CollectorConfig


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_that_is_interrupted_goes_on_to_no_other_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    drained: list[str] = []

    class Fake:
        """Stands for an agent whose spool is empty."""

        def __init__(self, config: CollectorConfig, _: Path, *, receives: bool) -> None:
            assert not receives
            self._name = config.data_dir.name

        async def run(self, stop: asyncio.Event, *, within_s: float | None) -> None:
            del within_s
            drained.append(self._name)
            if self._name == "1":
                os.kill(os.getpid(), number)
                await asyncio.wait_for(stop.wait(), 60)

    monkeypatch.setattr(agent, "Agent", Fake)
    data = tmp_path / "data"
    for index in (1, 2, 3):
        (data / "workers" / str(index)).mkdir(parents=True)
    config = tmp_path / "collector.yaml"
    config.write_text(f"data_dir: {data}\nsources: [{{type: stdin, service: app}}]\n")
    result = CliRunner().invoke(spool, ["drain", "--config", str(config)])
    assert result.exit_code == 75
    assert drained == ["data", "1"]
    assert "workers/2" in result.output
    assert "workers/3" in result.output
