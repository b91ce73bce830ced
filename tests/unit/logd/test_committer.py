"""The writer's turns: how much of what waits is in memory twice."""

import weakref
from pathlib import Path
from typing import Any

import pytest

from penstock.logd import committer
from penstock.logd.committer import Committer, Durable, Outcome
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.turn import Append, Message, Run
from penstock.logd.limits import FRAME_BYTES_MAX
from penstock.logd.retainer import Retainer
from penstock.logd.store import CommitLog, LogConfig
from penstock.service.clock import SystemClock
from tests.support.waiting import wait_until

CONFIG = StreamConfig(name="logs", subject="t.>")
PAYLOAD = 3_000


class ReferredRun(Run):
    """A run that weak references may be made to."""

    __slots__ = ("__weakref__",)


def test_a_long_turn_is_written_in_parts_and_let_go_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "APPEND_BYTES_MAX", 12_000)
    log = CommitLog.open(tmp_path, LogConfig())
    runs = [
        ReferredRun(n, 1, [Message(b"t.a", b"", b"", bytes(PAYLOAD))], size=FRAME_BYTES_MAX)
        for n in range(10)
    ]
    left = [weakref.ref(run) for run in runs]
    lengths, held = list[int](), list[int]()
    append = log.append

    def note(frames: Any) -> None:
        lengths.append(sum(header.frame_length for header, _ in frames))
        held.append(sum(run() is not None for run in left))
        append(frames)

    monkeypatch.setattr(log, "append", note)
    outcomes: list[Outcome] = []
    clock = SystemClock()
    retainer = Retainer(log, CONFIG, interval_s=30, high_watermark=lambda: 0, clock=clock)
    writer = Committer(log, CONFIG, epoch=1, post=outcomes.append, clock=clock, retainer=retainer)
    writer.submit(Append([*runs], 1))
    runs.clear()
    writer.start()
    wait_until(lambda: outcomes)
    assert outcomes == [Durable(10)], "one sync, one ack for all"
    assert max(lengths) <= 12_000
    assert len(lengths) == 4
    assert held == sorted(held, reverse=True)
    assert held[-1] <= 1
    writer.close()
