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

from penstock.router.core.verdict import Failed, Fault, Sorted, Taken, Verdict
from penstock.router.dead_letter import Reason, lay_each_aside
from penstock.router.errors import StoppedError
from penstock.router.sinks.guarantee import Guarantee, Replay
from penstock.router.sinks.request_settings import HttpSettings
from penstock.router.sinks.requests import Item, Request, RequestSink, Row
from penstock.router.sinks.sink import Originals, SinkContext
from tests.support.sink_batches import batch, context, dead_letters, log_record


class Settings(HttpSettings):
    type: str


class Picky(RequestSink):
    """Encodes even offsets only; of a request's records it refuses those that it is told to."""

    config_class = Settings
    guarantee = Guarantee(Replay.AT_LEAST_ONCE, "so it is")
    address = "nowhere"

    def __init__(self, its: SinkContext, *verdicts: Verdict, **keys: Any) -> None:
        settings = {"type": "picky", "url": "http://127.0.0.1:1", **keys}
        super().__init__(Settings.model_validate(settings), its)
        self.verdicts = list(verdicts)
        self.letters_before: list[list[int]] = []

    @override
    def encode(self, row: Row) -> Item | Fault:
        if row["offset"] % 2:
            return Fault("odd", f"{row['offset']} is odd")
        return Item(row["value"], len(row["value"]))

    @override
    def exchange(self, request: Request, attempt: int) -> Verdict:
        self.letters_before.append([it["offset"] for it in dead_letters(self.context)])
        return self.verdicts.pop(0) if self.verdicts else Taken()


@pytest.fixture
def fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The handles that were made durable."""
    real, handles = os.fsync, list[int]()

    def fsync(handle: int) -> None:
        handles.append(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
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
    assert (len(files(its)), len(fsyncs)) == (1, 2), "the file, and its directory"
    assert reasons(its) == [(it, "odd", f"{it} is odd", 0) for it in range(1, 800, 2)]
    assert sink.letters_before == [list(range(1, 800, 2))]
    assert its.meter.stage("sink", received=800, lag=0).detail["dead_letters"] == 400


def test_what_one_answer_refuses_is_one_file_before_the_next_request(
    tmp_path: Path, fsyncs: list[int]
) -> None:
    its = context(tmp_path)
    refused = tuple((place, Fault(f"http_{place}", f"no {place}", 400)) for place in (0, 3, 7))
    again = Sorted(refused=((1, Fault("late", "no", 400)),))
    away = Failed(Fault("http_500", "no", 500), answered=True)
    retry = {"first_s": 0.001, "max_s": 0.001}
    sink = Picky(its, away, Sorted(refused=refused), again, batch={"records_max": 10}, retry=retry)
    sink.write(records(40).filter(pa.array([True, False] * 20)))
    assert (len(files(its)), len(fsyncs)) == (2, 4)
    assert reasons(its) == [
        (0, "http_0", "no 0", 2), (6, "http_3", "no 3", 2), (14, "http_7", "no 7", 2),
        (22, "late", "no", 1),
    ]  # fmt: skip
    assert sink.letters_before == [[], [], [0, 6, 14]]


class Stopping:
    """The job ends as the first letters are published."""

    def __init__(self, its: SinkContext) -> None:
        self.its = its

    def publish(self, lines: Sequence[str]) -> None:
        self.its.stop.set()


def test_a_sink_that_is_to_stop_leaves_the_other_files_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.router.dead_letter.LETTERS_MAX", 5)
    its = context(tmp_path)
    sink = Picky(replace(its, letter_stream=Stopping(its)))
    with pytest.raises(StoppedError):
        sink.write(records(40))
    assert (len(files(its)), sink.letters_before) == (1, [])
    its.stop.clear()
    Picky(its).write(records(40))
    assert [it["offset"] for it in dead_letters(its)] == list(range(1, 40, 2))
    assert len(files(its)) == 4


def test_a_last_file_is_written_though_the_sink_is_to_stop(tmp_path: Path) -> None:
    """A batch in work is finished at the end of a job."""
    its = context(tmp_path)
    its.stop.set()
    Picky(its).write(records(4))
    assert [it["offset"] for it in dead_letters(its)] == [1, 3]


def test_the_originals_of_many_rows_are_found_at_once_each_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the rows and the batch are ordered."""
    its = context(tmp_path)
    parts = [batch([b"%d/%d" % (it, n) for n in range(3)], partition=it) for it in (1, 0)]
    its.originals.table = pa.concat_tables(parts).take([5, 1, 3, 0, 4, 2])
    hidden = pa.array([b"***"] * 6, pa.binary())
    rows = pa.concat_tables(parts)
    rows = rows.set_column(rows.column_names.index("value"), "value", hidden)
    asked: list[int] = []
    real = Originals.of

    def of(self: Originals, wanted: pa.Table) -> pa.Table:
        asked.append(wanted.num_rows)
        return real(self, wanted)

    monkeypatch.setattr(Originals, "of", of)
    monkeypatch.setattr("penstock.router.dead_letter.LETTERS_MAX", 1)
    chosen = [4, 2, 0, 3]  # 0/1, 1/2, 1/0, 0/0
    texts = [Reason("x", text) for text in ("0/1", "1/2", "1/0", "0/0")]
    paths = lay_each_aside(rows.take(chosen), texts, its)
    letters = [json.loads(path.read_text()) for path in paths]
    assert [it["value"] for it in letters] == ["0/0", "0/1", "1/0", "1/2"]
    assert [it["value"] for it in letters] == [it["reason"] for it in letters]
    assert asked == [4]
