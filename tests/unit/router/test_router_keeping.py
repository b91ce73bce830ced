"""What a sink notes is kept in the store before it publishes; where that cannot be, it waits."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.router.errors import UnavailableError
from penstock.router.read.offsets import Offsets
from penstock.router.sinks import SinkContext
from penstock.router.sinks.bigquery.journal import Journal, Sent
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from tests.support import sink_batches
from tests.support.recorded_sink import RecordedSink
from tests.support.scripted_spark import NoRows, plan
from tests.unit.router.sink_rows import context, row, table
from tests.unit.router.test_router_query import PLACE, made


class Away:
    """A store that is away, and what a note said when it was to be kept."""

    def __init__(self, note: Path) -> None:
        self._note = note
        self.said: Any = None

    def __call__(self) -> None:
        self.said = json.loads(self._note.read_bytes())
        raise UnavailableError("the store is away")


def refused(within: SinkContext, note: str, publish: Callable[[SinkContext], object]) -> Any:
    """What the note held when a sink that was to publish could not keep it."""
    away = Away(within.state_dir / note)
    with pytest.raises(UnavailableError, match="the store is away"):
        publish(replace(within, persist=away))
    return away.said


def test_no_file_has_its_name_before_the_note_is_kept(tmp_path: Path) -> None:
    def publish(within: SinkContext) -> None:
        lake = ParquetLake(ParquetSink(type="parquet", path=tmp_path / "lake"), within)
        lake.open()
        lake.write(table([row(0)]))

    (name,) = refused(context(tmp_path), "batch.json", publish)
    assert name.endswith(".parquet")
    assert list((tmp_path / "lake").rglob("*.parquet")) == []


def test_no_object_is_put_before_the_note_is_kept(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "secret"}

    def publish(within: SinkContext) -> None:
        with RecordedSink("s3", tmp_path, path="/lake", within=within, **keys) as made:
            try:
                made.write([sink_batches.log_record(0)])
            finally:
                assert made.door.asked == []

    note = refused(sink_batches.context(tmp_path), "objects.json", publish)
    (key,) = note["keys"]
    assert key.endswith(".parquet")


def test_nothing_is_appended_to_bigquery_before_the_journal_is_kept(tmp_path: Path) -> None:
    def publish(within: SinkContext) -> None:
        journal = Journal(within.state_dir / "bigquery.json", within.persist)
        journal.begin([("logs.5f2c-0", 7)])
        journal.send(Sent(0, (("logs.5f2c-0", 7),)))

    said = refused(context(tmp_path), "bigquery.json", publish)
    assert said["sent"] == [["logs.5f2c-0", [[7, 7]]]]


def test_no_batch_is_delivered_before_what_spark_planned_is_kept(tmp_path: Path) -> None:
    stream_id = {"logs": "5f2c"}
    within = context(tmp_path)

    def deliver(asked: SinkContext) -> None:
        its = made(tmp_path, within=asked, starting=Offsets({PLACE: 40}, stream_id))
        its.poll()
        plan(within.state_dir, [Offsets({PLACE: 140}, stream_id)])
        its.spark_query.deliver(NoRows(), 0)

    assert refused(within, "batches.ndjson", deliver) is not None
    assert within.meter.stage("lake", received=0, lag=0).detail == {}
