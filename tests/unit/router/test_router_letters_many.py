"""Many dead letters at once: as few files as can be, each letter exact, and an end to it."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from penstock.router.deadletters.replayable import DeadLetterLimits, find_dead_letters
from penstock.router.deadletters.writer import FILE_LIMITS, FileLimits, Reason, send_each_to_dlq
from penstock.router.delivery.result import DeliveryResult, Failed, Fault, PartialFailure, Success
from penstock.router.errors import StoppedError
from penstock.router.read.offsets import digest_of
from penstock.router.sinks.http.request_sink import Item, Request, RequestSink, Row
from penstock.router.sinks.http.settings import HttpSettings
from penstock.router.sinks.sink import Guarantee, Originals, Replay, SinkContext
from tests.support.sink_batches import batch, context, dead_letters, log_record


class Settings(HttpSettings):
    type: str


class Picky(RequestSink):
    """Encodes even offsets only; of a request's records it refuses those that it is told to."""

    config_class = Settings
    guarantee = Guarantee(Replay.AT_LEAST_ONCE, "so it is")
    address = "nowhere"

    def __init__(self, its: SinkContext, *verdicts: DeliveryResult, **keys: Any) -> None:
        settings = {"type": "picky", "url": "http://127.0.0.1:1", **keys}
        super().__init__(Settings.model_validate(settings), its)
        self.verdicts = list(verdicts)

    @override
    def encode(self, row: Row) -> Item | Fault:
        if row["offset"] % 2:
            return Fault("odd", f"{row['offset']} is odd")
        return Item(row["value"], len(row["value"]))

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        return self.verdicts.pop(0) if self.verdicts else Success()


@pytest.fixture
def fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The handles that were made durable."""
    real, handles = os.fsync, list[int]()

    def fsync(handle: int) -> None:
        handles.append(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)  # that data is durable shows in no other way
    return handles


def records(count: int) -> pa.Table:
    return batch([log_record(number) for number in range(count)])


def files(its: SinkContext) -> list[Path]:
    return sorted((its.dead_letters / its.sink).glob("*.ndjson"))


def reasons(its: SinkContext) -> list[tuple[int, str, str, int]]:
    return [(it["offset"], it["code"], it["reason"], it["attempt"]) for it in dead_letters(its)]


def test_records_that_cannot_be_encoded_are_one_file(tmp_path: Path, fsyncs: list[int]) -> None:
    its = context(tmp_path)
    sink = Picky(its)
    sink.write(records(800))
    assert (len(files(its)), len(fsyncs)) == (1, 4), "the file, its directory, two that are new"
    assert reasons(its) == [(it, "odd", f"{it} is odd", 0) for it in range(1, 800, 2)]
    assert its.meter.stage("sink", received=800, lag=0).detail["dead_letters"] == 400


def test_what_the_answers_to_a_batch_refuse_is_one_file(tmp_path: Path, fsyncs: list[int]) -> None:
    its = context(tmp_path)
    refused = tuple((place, Fault(f"http_{place}", f"no {place}", 400)) for place in (0, 3, 7))
    again = PartialFailure(refused=((1, Fault("late", "no", 400)),))
    away = Failed(Fault("http_500", "no", 500), answered=True)
    retry = {"initial_backoff_s": 0.001, "max_backoff_s": 0.001}
    sink = Picky(
        its, away, PartialFailure(refused=refused), again, batch={"max_records": 10}, retry=retry
    )
    sink.write(records(40).filter(pa.array([True, False] * 20)))
    assert (len(files(its)), len(fsyncs)) == (1, 4)
    assert reasons(its) == [
        (0, "http_0", "no 0", 2), (6, "http_3", "no 3", 2), (14, "http_7", "no 7", 2),
        (22, "late", "no", 1),
    ]  # fmt: skip


class Stopping:
    """The job ends as the first letters are published."""

    def __init__(self, its: SinkContext) -> None:
        self.its = its

    def publish(self, lines: Sequence[bytes]) -> int:
        self.its.stop.set()
        return 0


def test_a_sink_that_is_to_stop_leaves_the_other_files_for_the_next_time(tmp_path: Path) -> None:
    its, count = context(tmp_path), 4 * FILE_LIMITS.dead_letters
    sink, rows = Picky(replace(its, dead_letter_stream=Stopping(its))), batch([b"{}"] * count)
    with pytest.raises(StoppedError):
        sink.write(rows)
    assert len(files(its)) == 1
    its.stop.clear()
    Picky(its).write(rows)
    assert [it["offset"] for it in dead_letters(its)] == list(range(1, count, 2))
    assert len(files(its)) == 2


def test_a_last_file_is_written_though_the_sink_is_to_stop(tmp_path: Path) -> None:
    """A batch in work is finished at the end of a job."""
    its = context(tmp_path)
    its.stop.set()
    Picky(its).write(records(4))
    assert [it["offset"] for it in dead_letters(its)] == [1, 3]


class Counted(Originals):
    """Notes how many rows are looked up, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    @override
    def of(self, rows: pa.Table) -> pa.Table:
        self.asked.append(rows.num_rows)
        return super().of(rows)


def test_the_originals_of_many_rows_are_found_at_once_each_with_its_reason(
    tmp_path: Path,
) -> None:
    """However the rows and the batch are ordered."""
    originals = Counted()
    its = replace(context(tmp_path), originals=originals)
    parts = [batch([b"%d/%d" % (it, n) for n in range(3)], partition=it) for it in (1, 0)]
    its.originals.table = pa.concat_tables(parts).take([5, 1, 3, 0, 4, 2])
    hidden = pa.array([b"***"] * 6, pa.binary())
    rows = pa.concat_tables(parts)
    rows = rows.set_column(rows.column_names.index("value"), "value", hidden)
    chosen = [4, 2, 0, 3]  # 0/1, 1/2, 1/0, 0/0
    texts = [Reason("x", text) for text in ("0/1", "1/2", "1/0", "0/0")]
    paths = send_each_to_dlq(rows.take(chosen), texts, its, limits=FileLimits(dead_letters=1))
    found = [json.loads(path.read_text()) for path in paths]
    assert [it["value"] for it in found] == ["0/0", "0/1", "1/0", "1/2"]
    assert [it["value"] for it in found] == [it["reason"] for it in found]
    assert originals.asked == [4]


def refuse(its: SinkContext, *offsets: int) -> Path:
    rows = records(max(offsets) + 1).take(list(offsets))
    (path,) = send_each_to_dlq(rows, [Reason("x", "no")] * len(offsets), its)
    return path


def test_other_letters_between_the_same_ends_take_no_files_place(tmp_path: Path) -> None:
    """As when a batch comes again after a crash, and other records are refused together."""
    its = context(tmp_path)
    plain, gap, fewer = refuse(its, 2, 3, 4, 5, 6), refuse(its, 2, 4, 6), refuse(its, 2, 6)
    assert plain.name == f"logs.5f2c19aa-0-{2:020d}-{6:020d}.ndjson"
    assert gap.name == f"logs.5f2c19aa-0-{2:020d}-{6:020d}.{digest_of([2, 4, 6])}.ndjson"
    assert files(its) == sorted([plain, gap, fewer])
    assert [refuse(its, 6, 4, 2), refuse(its, 2, 6), refuse(its, *range(2, 7))] == [
        gap, fewer, plain,
    ]  # fmt: skip
    assert [it["offset"] for it in dead_letters(its)] == [2, 2, 2, 3, 4, 4, 5, 6, 6, 6]


def test_files_with_a_digest_are_listed_chosen_and_replayed_as_others(tmp_path: Path) -> None:
    its, one = context(tmp_path), DeadLetterLimits(chunk_records=1)
    paths = [refuse(its, 2, 3, 4), refuse(its, 2, 4), refuse(its, 4)]
    listed = find_dead_letters(its.dead_letters)
    assert [it.name for it in listed] == sorted(f"{its.sink}/{path.stem}" for path in paths)
    assert sum(it.summary()["dead_letters"] for it in listed) == 6
    name = f"{its.sink}/{paths[1].stem}"
    (chosen,) = find_dead_letters(its.dead_letters, names=(name,), limits=one)
    begun = chosen.begin()
    chunks = begun.chunks("lake")
    assert [next(chunks)[0]["offset"], next(chunks)[0]["offset"]] == [2, 4]
    (position,) = its.dead_letters.rglob("*.position")
    assert position.stem == paths[1].stem
    (left,) = find_dead_letters(its.dead_letters, names=(name,), limits=one)
    assert (left.state, left.name) == ("replaying", name)
    assert [[it["offset"] for it in chunk] for chunk in left.chunks("lake")] == [[4]]
    assert left.end().path == its.dead_letters / its.sink / "done" / paths[1].name
    assert list(its.dead_letters.rglob("*.position")) == []
    assert files(its) == sorted([paths[0], paths[2]])


def test_a_file_ends_with_the_letter_that_makes_its_values_enough(tmp_path: Path) -> None:
    its, few = context(tmp_path), FileLimits(values_bytes=10)
    rows = batch([b"x" * size for size in (4, 5, 1, 10, 0, 30, 9)])
    paths = send_each_to_dlq(rows, [Reason("x", str(it)) for it in range(7)], its, limits=few)
    found = [[json.loads(line) for line in it.read_text().splitlines()] for it in paths]
    assert [[it["offset"] for it in file] for file in found] == [[0, 1, 2], [3], [4, 5], [6]]
    assert all(it["reason"] == str(it["offset"]) for file in found for it in file)


def test_letters_without_a_value_are_kept(tmp_path: Path) -> None:
    its = context(tmp_path)
    rows = records(2)
    nothing = pa.nulls(2, pa.binary())
    rows = rows.set_column(rows.column_names.index("value"), "value", nothing)
    send_each_to_dlq(rows, [Reason("x", "no")] * 2, its)
    assert [it["value"] for it in dead_letters(its)] == [None, None]
