"""What a replay tells a sink, without Spark and a log."""

from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.router import bounded
from penstock.router.core.offsets import Readable, StreamPartition
from penstock.router.reading import LogState
from penstock.router.sinks import Sink, SinkContext
from tests.unit.router.sink_rows import context
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_feed import Notebook

PLACE = StreamPartition("logs", 0)


class Listening(Notebook):
    """Writes down what it hears."""

    def __init__(self, its: SinkContext) -> None:
        super().__init__(its)
        self.heard: list[str] = []

    @override
    def begin_anew(self) -> None:
        self.heard.append("begin_anew")


class Run:
    """Has a readable log of ten records and delivers none."""

    def __init__(self, directory: Path) -> None:
        self.config = load(directory, checkpoint_dir=str(directory / "checkpoint"))
        self.state = LogState({PLACE: Readable(0, 10)}, {})
        self.delivered = 0
        self._directory = directory

    def context(self, sink: str, state_dir: Path) -> SinkContext:
        return context(self._directory)

    def rows(self, chunk: Any) -> Any:
        return chunk

    def deliver(self, feed: Any, sink: str, rows: Any, batch: int) -> int:
        self.delivered += 1
        return 5


def test_a_sink_hears_that_a_replay_is_on_purpose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Listening] = []

    def opened(_: Any, its: SinkContext) -> Sink:
        made.append(Listening(its))
        return made[0]

    monkeypatch.setattr(bounded, "open_sink", opened)
    run: Any = Run(tmp_path)
    assert bounded.backfill(run, "lake", {PLACE: 0}, {PLACE: 10}, print) == 5
    assert made[0].heard == ["begin_anew"]
    assert run.delivered == 1
