"""What the S3 sink asks of a store."""

from pathlib import Path

import pytest

from penstock.router.sinks.s3 import S3, S3Sink
from penstock.router.sinks.table import sink_kind
from tests.support.sink_batches import batch, context, log_record


@pytest.mark.parametrize(
    ("prefix", "path"),
    [("", ""), ("/lake/", "/lake"), ("/team=a/b%20c+d", "/team%3Da/b%20c%2Bd")],
)
def test_the_whole_path_is_encoded_as_it_is_signed(tmp_path: Path, prefix: str, path: str) -> None:
    keys = {"access_key_id": "id", "secret_access_key": "secret"}
    settings = {"type": "s3", "url": f"https://minio.example/telemetry{prefix}", **keys}
    sink = S3(S3Sink.model_validate(settings), context(tmp_path))
    ((request,), _) = sink._requests(batch([log_record(0)]))
    made = sink.request_of(request, 1)
    assert made.path.startswith(f"/telemetry{path}/kind%3Dlog/service%3Dcheckout/date%3D")


@pytest.mark.parametrize("name", ["s3", "http", "splunk_hec", "loki"])
def test_a_plan_shows_no_password_of_a_url(name: str) -> None:
    token = {"token": "t"} if name == "splunk_hec" else {}
    settings = token | {"type": name, "url": "https://me:hunter2@x.example:9000/b?a=1"}
    about = sink_kind(name).config.model_validate(settings).about()
    assert " https://x.example:9000/b?a=1" in about
    assert "hunter2" not in about
