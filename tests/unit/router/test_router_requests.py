"""How rows are cut into requests, and what HTTP's answers mean."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.router.delivery.classify import HttpResponse, classify_response
from penstock.router.delivery.result import (
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.sinks import make_sink
from penstock.router.sinks.http.client import compressed, retry_after_s
from penstock.router.sinks.http.sink import HttpPost, HttpSink
from penstock.router.sinks.registry import sink_kind
from penstock.service import ConfigError
from penstock.service.config_types import Secret
from tests.support.recorded_sink import sent
from tests.support.sink_batches import batch, context, log_record


def post(directory: Path, **keys: Any) -> HttpPost:
    settings = {"type": "http", "url": "http://127.0.0.1:1/in?a=b", **keys}
    made = make_sink(HttpSink.model_validate(settings), context(directory))
    assert isinstance(made, HttpPost)
    return made


def cuts(directory: Path, rows: Any, **batch: int) -> list[tuple[str, int]]:
    """The key of each request, and how many records it has."""
    outcome = sent("http", directory, rows, batch=batch)
    assert outcome.dead_letters == []
    keys = [asked.headers["idempotency-key"] for asked in outcome.requests]
    return [(key, len(body.splitlines())) for key, body in zip(keys, outcome.bodies, strict=True)]


def test_rows_are_cut_by_count_and_partition_with_keys_that_name_them(tmp_path: Path) -> None:
    rows = batch([log_record(number) for number in range(3)], first=7)
    assert cuts(tmp_path, rows, max_records=2) == [
        ("job/sink/logs.5f2c19aa/0/7-8", 2),
        ("job/sink/logs.5f2c19aa/0/9-9", 1),
    ]
    two = batch([b"x"], first=3, partition=1)
    assert cuts(tmp_path, two, max_records=2) == [("job/sink/logs.5f2c19aa/1/3-3", 1)]


def test_rows_are_cut_by_the_bytes_that_are_sent(tmp_path: Path) -> None:
    """A row that is no record grows when it is wrapped; the bound is for what is sent."""
    bodies = sent("http", tmp_path, [b"\xff" * 300] * 4, batch={"max_bytes": 1024}).bodies
    assert max(map(len, bodies)) <= 1024
    assert sum(len(body.splitlines()) for body in bodies) == 4


def test_a_row_larger_than_a_request_goes_alone(tmp_path: Path) -> None:
    rows = batch([b"a", b"x" * 3000, b"b"])
    assert cuts(tmp_path, rows, max_bytes=1024) == [
        (f"job/sink/logs.5f2c19aa/0/{offset}-{offset}", 1) for offset in range(3)
    ]


def test_rows_go_in_the_order_of_the_log_whatever_order_they_come_in(tmp_path: Path) -> None:
    sink = post(tmp_path)
    rows = batch([log_record(number) for number in range(4)])
    (shown,) = sink.preview(rows.take([2, 0, 3, 1]))
    assert [json.loads(line)["body"].split()[1] for line in shown.body.splitlines()] == [
        "0", "1", "2", "3",
    ]  # fmt: skip


def test_a_body_is_one_record_a_line_whatever_the_record(tmp_path: Path) -> None:
    rows = batch([b'{"kind":\n"log"}', b"two\nlines", b"\xff"])
    kinds = ["log", "raw", "raw"]
    rows = rows.set_column(rows.column_names.index("kind"), "kind", [kinds])
    (shown,) = post(tmp_path).preview(rows)
    lines = [json.loads(line) for line in shown.body.splitlines()]
    assert lines[0] == {"kind": "log"}
    assert lines[1]["value"] == "two\nlines"
    assert lines[2]["value_base64"] == "/w=="
    (array,) = post(tmp_path, format="json").preview(rows)
    assert json.loads(array.body) == lines


def test_a_preview_shows_the_request_and_no_secret(tmp_path: Path) -> None:
    sink = post(tmp_path, headers={"X-Api-Key": "hush"})
    (shown,) = sink.preview(batch([log_record(0)]))
    assert shown.target == "POST http://127.0.0.1:1/in?a=***"
    assert ("X-Api-Key", "***") in shown.headers
    assert "hush" not in repr(shown)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Success), (204, Success), (301, Paused), (400, Rejected), (401, Paused), (403,
        Paused), (404, Paused), (408, Retryable), (409, Rejected), (413, TooLarge), (422, Rejected),
        (425, Retryable), (429, Retryable), (500, Failed), (501, Failed), (502, Failed), (503,
        Retryable), (504, Failed),
    ],
)  # fmt: skip
def test_statuses_mean_what_the_documents_say(status: int, expected: type) -> None:
    assert type(classify_response(HttpResponse(status, {}, b""))) is expected


def test_a_gateway_that_fails_is_no_answer_of_the_destination() -> None:
    """Only what the destination says itself may convict a record that is alone."""
    answers = {status: classify_response(HttpResponse(status, {}, b"no")) for status in (500, 502)}
    assert answers[500] == Failed(Fault("http_500", "HTTP 500 no", 500), answered=True)
    assert answers[502] == Failed(Fault("http_502", "HTTP 502 no", 502), answered=False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 0), ("7", 7), ("Thu, 01 Jan 1970 00:01:10 GMT", 60), ("soon", 0),
        ("Thursday, 01-Jan-70 00:01:10 GMT", 60), ("Thu Jan  1 00:01:10 1970", 60),
        ("Thu, 01 Jan 1970 00:01:10 -0000", 60), ("01 Jan 99999999999999999999 00:01:10 GMT", 0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(
    monkeypatch: pytest.MonkeyPatch, text: str | None, seconds: float
) -> None:
    """Whatever the zone of this machine is."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert retry_after_s(text, 10 * 10**9) == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_the_same_bytes_are_compressed_to_the_same_bytes(how: Any) -> None:
    assert compressed(b"x" * 999, how) == compressed(b"x" * 999, how)
    assert len(compressed(b"x" * 999, how)[0]) < 99


def test_a_secret_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    secret = Secret.model_validate({"file": file})
    assert secret.read() == "old"
    file.write_text("new\n")
    assert secret.read() == "new"
    assert "hush" not in repr(Secret.model_validate("hush"))
    with pytest.raises(ValueError, match="give the secret itself"):
        Secret.model_validate({})


def test_a_secret_in_a_variable_is_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_KEY", "hush\n")
    secret = Secret.model_validate({"env": "VENDOR_KEY"})
    assert secret.read() == "hush"
    assert "hush" not in repr(secret)
    with pytest.raises(ValueError, match="the variable NOT_SET is not set"):
        Secret.model_validate({"env": "NOT_SET"})
    with pytest.raises(ValueError, match="give the secret itself"):
        Secret.model_validate({"env": "VENDOR_KEY", "file": "/x"})


ODD_SECRETS = [
    b"hush\nhush",
    b"hush\r\n x: hush",
    b"hush\0hush",
    "hush\u017e".encode(),
    b"hush\xff",
]


@pytest.mark.parametrize("held", ODD_SECRETS)
def test_a_secret_that_is_no_header_is_told_of_and_not_shown(tmp_path: Path, held: bytes) -> None:
    """What the library says of one repeats it."""
    (tmp_path / "token").write_bytes(held)
    outcome = sent("loki", tmp_path, [log_record(0)], token={"file": tmp_path / "token"})
    assert (outcome.circuit, outcome.requests) == ("paused", ())
    assert "hush" not in str(outcome.problem)


def test_an_at_sign_in_a_password_of_postgres_is_told_of(tmp_path: Path) -> None:
    """libpq takes what stands behind it for host and port, and would tell of them."""
    kind = sink_kind("postgres")
    for dsn in ("postgresql://u:p@hush:hush@h/db", "host=h port=hush", "host=h hush"):
        config = kind.config.model_validate({"type": "postgres", "dsn": dsn})
        with pytest.raises(ConfigError, match=r"sinks\.\w+\.dsn: ") as told:
            make_sink(config, context(tmp_path)).open()
        assert "hush" not in str(told.value)
        assert "%40" in told.value.fix
    for dsn in ("host=a,b port=5432,5433", "host=a,b port=,5433", "postgresql://u:p%40@h/db"):
        config = kind.config.model_validate({"type": "postgres", "dsn": dsn})
        make_sink(config, context(tmp_path)).open()
