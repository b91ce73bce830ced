"""What the S3 sink asks of a store."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks.registry import sink_kind
from penstock.router.sinks.s3 import S3, S3Sink
from tests.support.fault_door import Answered, Asked, Backend
from tests.support.recorded_sink import RecordedSink, resets, sent
from tests.support.sink_batches import batch, context, log_record

KEYS: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "secret"}


def sink(directory: Path, prefix: str) -> S3:
    settings = {"type": "s3", "url": f"https://minio.example/telemetry{prefix}", **KEYS}
    return S3(S3Sink.model_validate(settings), context(directory))


@pytest.mark.parametrize(
    ("prefix", "path"),
    [("", ""), ("/lake/", "/lake"), ("/team=a/b%20c+d", "/team%3Da/b%20c%2Bd")],
)
def test_the_whole_path_is_encoded_as_it_is_signed(tmp_path: Path, prefix: str, path: str) -> None:
    (asked,) = sent("s3", tmp_path, [log_record(0)], path=f"/telemetry{prefix}", **KEYS).requests
    assert asked.path.startswith(f"/telemetry{path}/kind%3Dlog/date%3D")


@pytest.mark.parametrize("name", ["s3", "http", "splunk_hec", "loki"])
def test_a_plan_shows_no_secret_of_a_url(name: str) -> None:
    token = {"token": "t"} if name == "splunk_hec" else {}
    settings = token | {
        "type": name,
        "url": "https://me:hunter2@x.example:9000/b?key=hunter3&hunter4",
    }
    about = sink_kind(name).config.model_validate(settings).about()
    assert " https://x.example:9000/b?key=***&***" in about
    assert "hunter" not in about


def test_a_preview_shows_no_secret_of_a_url(tmp_path: Path) -> None:
    (shown,) = sink(tmp_path, "/lake?key=hunter3").preview(batch([log_record(0)]))
    assert shown.target.startswith("PUT https://minio.example:443/telemetry/lake/kind=log/")
    assert shown.target.endswith(".parquet?key=***")


def test_an_object_that_may_be_there_is_sent_again_whole(tmp_path: Path) -> None:
    """However often nobody answers: pieces of it would have names of their own."""
    with RecordedSink("s3", tmp_path, path="/telemetry", **KEYS) as made:
        outcome = made.write([log_record(0), log_record(1)], *[resets] * 20, patience=100)
        assert len(outcome.requests) == 21
        assert len({(asked.path, asked.body) for asked in outcome.requests}) == 1
        waiting = made.write([log_record(0), log_record(1)], resets, patience=0)
    assert (outcome.problem, outcome.dead_letters) == (None, [])
    assert waiting.problem is not None
    assert waiting.problem.endswith(
        "it is sent again whole: raise timeout_s where a link is too slow for it"
    )


class Store(Backend):
    """Objects in a dictionary, as a store has them that knows `If-None-Match`."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    @override
    def handle(self, asked: Asked) -> Answered:
        if asked.method == "HEAD":
            return Answered(200 if asked.path in self.objects else 404)
        if asked.method == "DELETE":
            self.objects.pop(asked.path, None)
            return Answered(204)
        if asked.path in self.objects:
            return Answered(412)
        self.objects[asked.path] = asked.body
        return Answered(200)

    def offsets(self) -> list[int]:
        files = [pq.ParquetFile(io.BytesIO(body)) for body in self.objects.values()]
        return sorted(it for file in files for it in file.read(["offset"])["offset"].to_pylist())


def write(directory: Path, store: Store, rows: pa.Table, *, lost: int) -> None:
    """By a sink of another process, for the same batch of which so many records are lost."""
    with RecordedSink("s3", directory, path="/telemetry", **KEYS) as made:
        made.door.backend = store
        at, ids = StreamPartition("logs", 0), made.context.stream_ids
        made.context.begin_batch(Offsets({at: 0}, ids), Offsets({at: 10}, ids))
        if lost:
            made.context.shorten()
        assert made.write(rows).problem is None


@pytest.mark.parametrize("first", [0, 4])
def test_an_object_stays_whose_records_the_log_has_lost_since(tmp_path: Path, first: int) -> None:
    """An earlier attempt put all ten. The log has the last ones only, and none is put again."""
    store = Store()
    records = [log_record(number) for number in range(10)]
    write(tmp_path, store, batch(records), lost=0)
    whole = dict(store.objects)
    write(tmp_path, store, batch(records[first:], first=first), lost=first)
    assert store.objects == whole
    assert store.offsets() == [*range(10)]


def test_what_was_never_put_comes_beside_what_the_log_has_lost(tmp_path: Path) -> None:
    store = Store()
    records = [log_record(number) for number in range(10)]
    write(tmp_path, store, batch(records[:6]), lost=0)
    write(tmp_path, store, batch(records[4:], first=4), lost=4)
    assert store.offsets() == [*range(10)]


@pytest.mark.parametrize(
    ("status", "body", "circuit"),
    [
        (500, b"<Error><Code>InternalError</Code></Error>", "closed"),
        (502, b"", "closed"),
        (503, b"<Error><Code>SlowDown</Code></Error>", "closed"),
        (400, b"<Error><Code>BadDigest</Code></Error>", "closed"),
        (400, b"<Error><Code>InvalidRequest</Code></Error>", "paused"),
    ],
)
def test_no_object_is_given_up_for_what_a_store_answers(
    tmp_path: Path, status: int, body: bytes, circuit: str
) -> None:
    """A store looks into no object: what fails again and again is no record's fault."""
    with RecordedSink("s3", tmp_path, path="/telemetry", **KEYS) as made:
        outcome = made.write([log_record(0)], (status, body), patience=0)
        again = made.write([log_record(0)], *[(status, body)] * 50, patience=100)
    assert (outcome.circuit, again.dead_letters, again.problem) == (circuit, [], None)
    assert f"HTTP {status}" in (outcome.problem or "")


def test_an_object_that_is_too_large_is_cut(tmp_path: Path) -> None:
    too_large = (400, b"<Error><Code>EntityTooLarge</Code></Error>")
    with RecordedSink("s3", tmp_path, path="/telemetry", **KEYS) as made:
        outcome = made.write([log_record(0), log_record(1)], too_large)
    assert (len(outcome.requests), outcome.dead_letters, outcome.problem) == (3, [], None)


def test_an_object_that_is_there_is_delivered(tmp_path: Path) -> None:
    with RecordedSink("s3", tmp_path, path="/telemetry", **KEYS) as made:
        outcome = made.write([log_record(0)], 412)
    assert (len(outcome.requests), outcome.dead_letters, outcome.problem) == (1, [], None)
    assert outcome.counted["already_there"] == 1
