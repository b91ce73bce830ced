"""What the S3 sink asks of a store."""

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from penstock.router.core.http_codes import Answer
from penstock.router.core.offsets import Offsets, StreamPartition
from penstock.router.core.verdict import Busy, Paused, Taken, TooLarge
from penstock.router.sinks.s3 import S3, S3Sink
from penstock.router.sinks.table import sink_kind
from penstock.router.sinks.transport import HttpRequest, Silent, Transport
from tests.support.sink_batches import batch, context, log_record


def sink(directory: Path, prefix: str) -> S3:
    keys = {"access_key_id": "id", "secret_access_key": "secret"}
    settings = {"type": "s3", "url": f"https://minio.example/telemetry{prefix}", **keys}
    return S3(S3Sink.model_validate(settings), context(directory))


@pytest.mark.parametrize(
    ("prefix", "path"),
    [("", ""), ("/lake/", "/lake"), ("/team=a/b%20c+d", "/team%3Da/b%20c%2Bd")],
)
def test_the_whole_path_is_encoded_as_it_is_signed(tmp_path: Path, prefix: str, path: str) -> None:
    to = sink(tmp_path, prefix)
    ((request,), _) = to._requests(batch([log_record(0)]))
    made = to.request_of(request, 1)
    assert made.path.startswith(f"/telemetry{path}/kind%3Dlog/service%3Dcheckout/date%3D")


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

    class Hush(Transport):
        def __init__(self) -> None: ...

        @override
        def send(self, request: object) -> Silent:
            return Silent("TimeoutError: no answer within 60 s")

        @override
        def close(self) -> None: ...

    to = sink(tmp_path, "")
    to._transport = Hush()
    ((request,), _) = to._requests(batch([log_record(0), log_record(1)]))
    said = to.exchange(request, 1)
    assert isinstance(said, Busy)
    assert said.reason.startswith(
        "TimeoutError: no answer within 60 s; it is sent again whole: raise"
    )


class Store(Transport):
    """Objects in a dictionary, as a store has them that knows `If-None-Match`."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    @override
    def send(self, request: HttpRequest) -> Answer:
        if request.method == "HEAD":
            return Answer(200 if request.path in self.objects else 404, {}, b"")
        if request.method == "DELETE":
            self.objects.pop(request.path, None)
            return Answer(204, {}, b"")
        if request.path in self.objects:
            return Answer(412, {}, b"")
        self.objects[request.path] = request.body
        return Answer(200, {}, b"")

    @override
    def close(self) -> None: ...

    def offsets(self) -> list[int]:
        files = [pq.ParquetFile(io.BytesIO(body)) for body in self.objects.values()]
        return sorted(it for file in files for it in file.read(["offset"])["offset"].to_pylist())


def begun(directory: Path, store: Store, *, lost: int) -> S3:
    """A sink of another process, for the same batch of which so many records are lost."""
    to = sink(directory, "")
    to._transport = store
    at = StreamPartition("logs", 0)
    ids = to.context.incarnations
    to.context.begin_batch(Offsets({at: 0}, ids), Offsets({at: 10}, ids), lost=lost)
    return to


@pytest.mark.parametrize("first", [0, 4])
def test_an_object_stays_whose_records_the_log_has_lost_since(tmp_path: Path, first: int) -> None:
    """An earlier attempt put all ten. The log has the last ones only, and none is put again."""
    store = Store()
    records = [log_record(number) for number in range(10)]
    begun(tmp_path, store, lost=0).write(batch(records))
    whole = dict(store.objects)
    begun(tmp_path, store, lost=first).write(batch(records[first:], first=first))
    assert store.objects == whole
    assert store.offsets() == [*range(10)]


def test_what_was_never_put_comes_beside_what_the_log_has_lost(tmp_path: Path) -> None:
    store = Store()
    records = [log_record(number) for number in range(10)]
    begun(tmp_path, store, lost=0).write(batch(records[:6]))
    begun(tmp_path, store, lost=4).write(batch(records[4:], first=4))
    assert store.offsets() == [*range(10)]


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (500, b"<Error><Code>InternalError</Code></Error>", Busy),
        (502, b"", Busy),
        (503, b"<Error><Code>SlowDown</Code></Error>", Busy),
        (400, b"<Error><Code>BadDigest</Code></Error>", Busy),
        (400, b"<Error><Code>InvalidRequest</Code></Error>", Paused),
        (400, b"<Error><Code>EntityTooLarge</Code></Error>", TooLarge),
        (412, b"", Taken),
    ],
)
def test_no_object_is_given_up_for_what_a_store_answers(
    tmp_path: Path, status: int, body: bytes, verdict: type
) -> None:
    """A store looks into no object: what fails again and again is no record's fault."""
    to = sink(tmp_path, "")
    ((request,), _) = to._requests(batch([log_record(0)]))
    assert type(to.judge(Answer(status, {}, body), request)) is verdict
