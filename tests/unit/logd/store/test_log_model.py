"""The commit log on the real disk does what a list does."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from typing_extensions import override

from penstock.logd.storage import CommitLog, LogConfig
from tests.support.frames import make_frames

CONFIG = LogConfig(max_segment_bytes=900, index_interval_bytes=300)
bodies = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4)


class LogAndList(RuleBasedStateMachine):
    """A log and the list of all bodies that were ever appended, one record each."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-log-"))
        self.log = CommitLog.open(self.directory, CONFIG)
        self.start = 0
        self.model: list[bytes] = []

    @rule(bodies=bodies)
    def append(self, bodies: list[bytes]) -> None:
        frames = make_frames(self.log.end_offset, bodies)
        self.log.append(frames)
        self.model += [body for _, body in frames]

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == len(self.model)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        offset = self.start + round(part * (len(self.model) - self.start))
        self.log.truncate_to(offset)
        del self.model[offset:]

    @rule(part=st.floats(0, 1))
    def delete(self, part: float) -> None:
        offset = round(part * len(self.model))
        self.start = self.log.delete_before(offset)
        assert self.start <= max(offset, self.log.start_offset)

    @rule(close=st.booleans())
    def reopen(self, *, close: bool) -> None:
        if close:
            self.log.close()
        self.log = CommitLog.open(self.directory, CONFIG)
        assert self.log.recovery.damages == []
        assert not close or self.log.recovery.clean

    @rule(part=st.floats(0, 1), width=st.integers(1, 20), bytes_max=st.integers(1, 3000))
    def read(self, part: float, width: int, bytes_max: int) -> None:
        offset = self.start + round(part * (len(self.model) - self.start))
        upto = min(len(self.model), offset + width)
        got = [body for _, body in self.log.frames(offset, upto=upto)]
        assert got == self.model[offset:upto]
        at = offset
        for found in self.log.read(offset, bytes_max=bytes_max, upto=upto):
            data = found.file.read(found.position, found.length)
            frames = self.model[at : found.next_offset]
            assert len(data) == sum(88 + len(body) for body in frames)
            assert data.endswith(frames[-1])
            at = found.next_offset
        assert at <= upto
        assert self.log.offset_for_timestamp(offset) == offset

    @invariant()
    def bounds(self) -> None:
        assert self.log.start_offset == self.start
        assert self.log.end_offset == len(self.model)
        assert self.start <= self.log.synced_offset <= len(self.model)

    @override
    def teardown(self) -> None:
        self.log.close()
        assert [body for _, body in self.log.frames(self.start)] == self.model[self.start :]
        shutil.rmtree(self.directory)


TestLogAndList = LogAndList.TestCase
TestLogAndList.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
