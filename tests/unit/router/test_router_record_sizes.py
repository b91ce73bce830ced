"""How large records are: what is asked, what is told, and by whom it is put off."""

import asyncio
from contextlib import closing, nullcontext
from dataclasses import replace

import pytest
from msgspec import structs
from typing_extensions import override

from penstock.logd.api.operations import Fetch
from penstock.logd.client import Fetched, calls
from penstock.logd.client.calls import Call
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.frame import crc32c
from penstock.router.errors import LogUnavailableError
from penstock.router.read.async_calls import AsyncCalls
from penstock.router.read.logd_reader import LogdReader
from penstock.router.read.offsets import Span
from penstock.router.read.record_sizes import AT_A_TIME, Look, RecordSizes, Sample, sample_of
from tests.unit.router.scripted_log import AtOnce, Frame, ScriptedClient, compacted, reading


def frame_of(base: int, count: int, size: int) -> Frame:
    """Records of `size` bytes, for which zstd has a better use."""
    body = encode_body(build_batch([Record("t", b"x" * size, 1)] * count), compression="zstd")
    header, _ = compacted(base, count, list(range(count)))
    return structs.replace(header, body_length=len(body), body_crc=crc32c(body)), memoryview(body)


def a_fetch(offset: int) -> Call[Fetched]:
    return calls.fetch(Fetch(stream="s", offset=offset, partition=0, bytes_max=1), where="")


class OnlyFirst(ScriptedClient):
    """Answers with the frame that holds the offset; of subject `t` alone where it is narrow."""

    is_narrow = False

    @override
    def ask(self, call: Call[Fetched]) -> Fetched:
        found = super().ask(call)
        if self.is_narrow and call.request.get("subject") != "t":
            raise RefusedError("PERMISSION_DENIED", "no")
        return replace(found, frames=found.frames[:1], next_offset=found.frames[0][0].next_offset)


def size_at(
    log: LogdReader, offset: int, *, subject: str | None = None, patiently: bool = False
) -> tuple[int, int]:
    """0 for None."""
    look, told = Look(Span("s", 0, 0, 100), offset), list[tuple[int, int]]()

    def found(of: Look, sample: Sample) -> None:
        assert of is look
        told.append((sample.size or 0, sample.seen))

    with log:
        log.sample([look], subject=subject, patiently=patiently, found=found)
    return told[0]


def test_how_large_records_are_is_told_in_memory_and_as_far_as_was_looked() -> None:
    log = reading(OnlyFirst([frame_of(0, 50, 10), frame_of(50, 50, 5000)]))
    (small, to_small), (large, to_large) = size_at(log, 20), size_at(log, 99)
    assert (to_small, to_large) == (50, 100)
    assert 10 <= small < 200
    assert 5000 <= large < 6000


def test_where_no_subject_matches_the_others_tell_how_large_records_are() -> None:
    """What matches may lie further on."""
    client = OnlyFirst([frame_of(0, 10, 1000)])
    assert size_at(reading(client), 0, subject="none.here")[0] >= 1000
    assert [asked.get("subject") for asked in client.asked] == [None]


def test_who_may_read_a_subject_alone_asks_for_others_once() -> None:
    client = OnlyFirst([frame_of(0, 10, 1000)])
    client.is_narrow = True
    log = reading(client)
    for _ in range(2):
        assert size_at(log, 0, subject="t")[0] >= 1000
    assert [asked.get("subject") for asked in client.asked] == [None, "t", "t"]
    with pytest.raises(LogUnavailableError, match="no"):
        size_at(reading(client), 0)


def test_what_lies_before_the_first_that_matches_does_not_make_it_smaller() -> None:
    answer = OnlyFirst([frame_of(90, 10, 1000)]).ask(a_fetch(0))
    size, first, seen = sample_of(answer, 0)
    assert (first, seen) == (90, 100)
    assert size is not None
    assert 1000 <= size < 1200
    assert sample_of(replace(answer, frames=[], next_offset=50), 0) == Sample(0, 0, 50)


@pytest.mark.parametrize("code", ["OUT_OF_RANGE", "CORRUPT", "INTERNAL"])
def test_of_what_cannot_be_read_no_size_is_told(code: str) -> None:
    client = ScriptedClient([frame_of(0, 10, 1000)])
    client.refusals = [RefusedError(code, "no")]
    assert size_at(reading(client), 4) == (0, 5)


@pytest.mark.parametrize("code", ["QUOTA_EXCEEDED", "TOO_MANY_REQUESTS", "UNAVAILABLE"])
def test_who_is_put_off_takes_no_size_for_granted(code: str) -> None:
    client = ScriptedClient([frame_of(0, 10, 1000)])
    client.refusals = [RefusedError(code, "no")]
    with pytest.raises(LogUnavailableError):
        size_at(reading(client), 0)
    client.refusals = [RefusedError(code, "no")] * 2
    log = reading(client, retry_timeout_s=5.0)
    assert 1000 <= size_at(log, 0, patiently=True)[0] < 1200


class Together(AtOnce):
    """Answers once as many ask at a time as may; says how many did at most."""

    def __init__(self) -> None:
        super().__init__(ScriptedClient([frame_of(0, 10, 1000)]))
        self.under_way = self.most = self.asked = 0
        self._barrier = asyncio.Barrier(AT_A_TIME)

    @override
    async def ask(self, call: Call[Fetched]) -> Fetched:
        self.asked += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.asked > 1:
            async with asyncio.timeout(20):
                await self._barrier.wait()
        self.under_way -= 1
        return await super().ask(call)


def test_partitions_are_looked_at_together_and_only_so_many_at_a_time() -> None:
    client, told = Together(), set[Look]()
    looks = [Look(Span("s", number, 0, 10), 0) for number in range(1 + 3 * AT_A_TIME)]
    with closing(AsyncCalls(lambda: client)) as connection:  # type: ignore[arg-type,return-value]
        RecordSizes(connection).ask(looks, None, lambda look, _: told.add(look))
    assert told == set(looks)
    assert client.most == AT_A_TIME


class OneAtATime(AtOnce):
    """Has time for every second question."""

    turns = 0

    @override
    async def ask(self, call: Call[Fetched]) -> Fetched:
        self.turns += 1
        if self.turns % 2 == 0:
            raise RefusedError("QUOTA_EXCEEDED", "no")
        return await super().ask(call)


@pytest.mark.parametrize(("patiently", "count"), [(False, 1), (True, 5)])
def test_who_is_put_off_keeps_what_was_told_and_is_patient_while_something_is(
    *, patiently: bool, count: int
) -> None:
    """Also with a quota that lets one answer through at a time, for longer than is waited once."""
    client, told = ScriptedClient([frame_of(0, 10, 1000)]), list[Look]()
    log = reading(client, sizes=OneAtATime(client))
    looks = [Look(Span("s", number, 0, 10), 0) for number in range(5)]
    with (
        log,
        nullcontext() if patiently else pytest.raises(LogUnavailableError),
    ):
        log.sample(
            looks, subject=None, patiently=patiently, found=lambda look, _: told.append(look)
        )
    assert told == looks[:count]
