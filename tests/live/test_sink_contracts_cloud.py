"""What the fakes of cloud services say, and the services say too: the same tests run against both.

As in `test_sink_contracts.py`: without more, a fake is asked; an environment variable names the
real service instead, which holds a few records of these tests afterwards.

    PENSTOCK_TEST_DATADOG_URL=https://http-intake.logs.datadoghq.com
    PENSTOCK_TEST_DATADOG_API_KEY=…
    PENSTOCK_TEST_DATADOG_METRICS_URL=https://api.datadoghq.com
    PENSTOCK_TEST_CLOUD_LOGGING_URL=https://logging.googleapis.com
    PENSTOCK_TEST_GOOGLE_PROJECT=…  PENSTOCK_TEST_GOOGLE_CREDENTIALS=FILE
    PENSTOCK_TEST_BIGQUERY_TABLE=PROJECT.DATASET.TABLE  (as the sink's docstring makes it)
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from penstock.base.clock import SystemClock
from penstock.router.delivery.result import Retryable
from penstock.router.sinks.bigquery.client import Appended, Connection
from penstock.router.sinks.bigquery.sink import BigQuerySink, TroubleError, encoded
from penstock.router.sinks.google_cloud_logging import entry_errors
from penstock.router.sinks.http.google_credentials import GoogleToken
from penstock.specs.formats.ecs import time_text
from tests.live.test_sink_contracts import ask, destination
from tests.support.fake_bigquery import FakeBigQuery
from tests.support.fake_datadog import API_KEY, FakeDatadog
from tests.support.fake_google import PROJECT, FakeCloudLogging, google_account
from tests.support.sink_batches import NOW_NS

pytestmark = pytest.mark.live

Post = Callable[..., tuple[int, Any]]
NOW_S = NOW_NS // 10**9
POINT = {"metric": "penstock.contract", "type": 3, "points": [{"timestamp": NOW_S, "value": 1.5}]}


@pytest.fixture
def datadog() -> Iterator[Post]:
    own = os.environ.get("PENSTOCK_TEST_DATADOG_API_KEY", API_KEY)
    with destination("DATADOG", FakeDatadog) as logs:

        def post(path: str, body: Any, key: str | None = own) -> tuple[int, Any]:
            metrics = os.environ.get("PENSTOCK_TEST_DATADOG_METRICS_URL", logs)
            url = logs if path.endswith("logs") else metrics.rstrip("/")
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            named = {"DD-API-KEY": key} if key is not None else {}
            return ask(f"{url}{path}", data, Content_Type="application/json", **named)

        yield post


def test_datadog_takes_an_array_of_logs(datadog: Post) -> None:
    logs = [{"message": "a", "ddsource": "penstock"}, {"message": "b", "more": {"c": 1}}]
    assert datadog("/api/v2/logs", logs)[0] == 202


def test_datadog_takes_a_point_and_names_no_error(datadog: Post) -> None:
    assert datadog("/api/v2/series", {"series": [POINT]}) == (202, {"errors": []})


@pytest.mark.parametrize("body", [b"[", b"{", b"[7]"])
def test_datadog_refuses_a_whole_request_that_is_none(datadog: Post, body: bytes) -> None:
    assert datadog("/api/v2/logs", body)[0] == 400


def test_datadog_refuses_more_than_it_takes(datadog: Post) -> None:
    many = [{"message": "x" * 6000}] * 1000
    assert datadog("/api/v2/logs", many)[0] == 413


def test_datadog_refuses_whoever_has_no_key(datadog: Post) -> None:
    for key in (None, "0" * 32):
        assert datadog("/api/v2/logs", [{"message": "a"}], key)[0] in (401, 403)
    assert datadog("/api/v2/series", {"series": [POINT]}, "0" * 32)[0] == 403


@pytest.fixture
def google_key() -> dict[str, Any]:
    """Of a service account, as Google gives it out."""
    file = os.environ.get("PENSTOCK_TEST_GOOGLE_CREDENTIALS", google_account().file)
    key: dict[str, Any] = json.loads(Path(file).read_text())
    return key


def granted(key: dict[str, Any], *, signed: str, **claims: Any) -> tuple[int, Any]:
    """What the token endpoint says to an assertion of an account."""
    now = SystemClock().unix_ns() // 10**9
    own = {
        "iss": key["client_email"],
        "scope": "https://www.googleapis.com/auth/logging.write",
        "aud": "https://oauth2.googleapis.com/token",
        "iat": now,
        "exp": now + 600,
    }
    assertion = jwt.encode(own | claims, signed, "RS256", {"kid": key["private_key_id"]})
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}
    named = {"Content_Type": "application/x-www-form-urlencoded"}
    return ask(key["token_uri"], urlencode(form).encode(), **named)


def test_google_grants_a_token_for_an_hour_at_most(google_key: dict[str, Any]) -> None:
    status, said = granted(google_key, signed=google_key["private_key"])
    assert (status, said["token_type"]) == (200, "Bearer")
    assert said["access_token"]
    assert 0 < said["expires_in"] <= 3600


def test_google_grants_none_for_what_another_signed(google_key: dict[str, Any]) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    status, said = granted(google_key, signed=other.decode())
    assert (status, said["error"]) == (400, "invalid_grant")


def test_google_grants_none_for_what_is_over(google_key: dict[str, Any]) -> None:
    over = {"iat": 1_700_000_000, "exp": 1_700_000_600}
    status, said = granted(google_key, signed=google_key["private_key"], **over)
    assert (status, said["error"]) == (400, "invalid_grant")


@pytest.fixture
def cloud_logging() -> Iterator[Post]:
    file = os.environ.get("PENSTOCK_TEST_GOOGLE_CREDENTIALS")
    project = os.environ.get("PENSTOCK_TEST_GOOGLE_PROJECT", PROJECT)
    scope = "https://www.googleapis.com/auth/logging.write"
    token = GoogleToken(Path(file) if file else google_account().file, scope=scope, timeout_s=20)
    with destination("CLOUD_LOGGING", FakeCloudLogging) as url:

        def write(*entries: dict[str, Any], partial: bool = True) -> tuple[int, Any]:
            own = {
                "logName": f"projects/{project}/logs/penstock-contract",
                "insertId": uuid.uuid4().hex,
                "timestamp": time_text(NOW_NS),
            }
            body = {"partialSuccess": partial, "resource": {"type": "global"}}
            data = json.dumps({**body, "entries": [{**own, **it} for it in entries]}).encode()
            named = {"Content_Type": "application/json"}
            return ask(
                f"{url}/v2/entries:write", data, Authorization=f"Bearer {token.read()}", **named
            )

        yield write


def test_cloud_logging_takes_entries(cloud_logging: Post) -> None:
    entry = {"jsonPayload": {"message": "a", "b": {"c": [1]}}, "severity": "INFO"}
    assert cloud_logging(entry, entry, {"textPayload": "b"}) == (200, {})


def test_cloud_logging_names_the_entries_that_it_refuses(cloud_logging: Post) -> None:
    good, bad = {"textPayload": "a"}, {"textPayload": "x" * 300_000}
    status, said = cloud_logging(good, bad, good)
    assert status == 400
    assert [(place, code) for place, code, _ in entry_errors(json.dumps(said).encode())] == [(1, 3)]


def test_cloud_logging_refuses_what_is_no_entry(cloud_logging: Post) -> None:
    status, said = cloud_logging({"textPayload": "a", "nonsense": 1})
    assert (status, said["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert entry_errors(json.dumps(said).encode()) == []


ROW = encoded(("contract", "", 0, 0, NOW_NS // 1000, NOW_NS, "raw"))


@pytest.fixture
def bigquery() -> Iterator[Connection]:
    fake = FakeBigQuery()
    keys = fake.keys()
    if table := os.environ.get("PENSTOCK_TEST_BIGQUERY_TABLE"):
        file = os.environ.get("PENSTOCK_TEST_GOOGLE_CREDENTIALS")
        keys = {"table": table, "credentials_file": file}
    made = Connection(BigQuerySink.model_validate({"type": "bigquery", **keys}), SystemClock())
    yield made
    made.close()
    fake.close()


def appended(bigquery: Connection, stream: str, offset: int, *rows: bytes) -> Appended:
    """What is said of an append, in an answer or instead of one."""
    try:
        return bigquery.append(stream, offset, rows)
    except TroubleError as error:
        return Appended(error.verdict, is_certain=False)


def test_bigquery_takes_rows_at_the_end_of_a_stream_only(bigquery: Connection) -> None:
    stream = bigquery.create()
    assert appended(bigquery, stream, 0, ROW, ROW) == Appended()
    for offset in (0, 1, 7):
        answer = appended(bigquery, stream, offset, ROW)
        assert isinstance(answer.verdict, Retryable)
        assert not answer.is_certain
    assert appended(bigquery, stream, 2, ROW) == Appended()
    assert bigquery.finalize(stream) == 3


def test_bigquery_takes_nothing_behind_the_end_that_it_told(bigquery: Connection) -> None:
    stream = bigquery.create()
    assert appended(bigquery, stream, 0, ROW) == Appended()
    assert [bigquery.finalize(stream), bigquery.finalize(stream)] == [1, 1]
    answer = appended(bigquery, stream, 1, ROW)
    assert isinstance(answer.verdict, Retryable)
    assert not answer.is_certain
    assert bigquery.finalize(stream) == 1


def test_bigquery_takes_all_rows_of_an_append_or_none(bigquery: Connection) -> None:
    stream = bigquery.create()
    answer = appended(bigquery, stream, 0, ROW, b"\xff\xff\xff", ROW)
    assert answer.verdict is not None
    assert answer.is_certain
    assert bigquery.finalize(stream) == 0


def test_bigquery_does_not_know_a_stream_that_it_did_not_make(bigquery: Connection) -> None:
    stream = bigquery.create()
    assert bigquery.finalize(f"{stream[:-2]}nowhere") is None
