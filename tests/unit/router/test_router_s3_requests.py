"""What the S3 sink asks of a store."""

from pathlib import Path

import pytest
from typing_extensions import override

from penstock.router.core.http_codes import Answer
from penstock.router.core.verdict import Busy, Paused, Taken, TooLarge
from penstock.router.sinks.s3 import S3, S3Sink
from penstock.router.sinks.table import sink_kind
from penstock.router.sinks.transport import Silent, Transport
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
