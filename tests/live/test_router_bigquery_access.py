"""Who may append to BigQuery: grants that are refused, unknown tokens, rights that are missing."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.bigquery.sink import BigQuerySink
from tests.support.fake_bigquery import FakeBigQuery
from tests.support.fake_google import GoogleAccount, google_account
from tests.support.sink_batches import batch, context, dead_letters, log_record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 6
EACH_ONCE = Counter(range(COUNT))
FAST = {
    "retry": {"initial_backoff_s": 0.005, "max_backoff_s": 0.02, "max_paused_backoff_s": 0.02},
    "timeout_s": 10,
}


@pytest.fixture
def table() -> Iterator[FakeBigQuery]:
    made = FakeBigQuery()
    yield made
    made.close()


def sink_of(table: FakeBigQuery, directory: Path, **keys: Any) -> tuple[Any, SinkContext]:
    made = context(directory)
    own = {"type": "bigquery", "batch": {"max_records": 2}, **FAST}
    settings = own | table.keys() | keys
    sink = make_sink(BigQuerySink.model_validate(settings), made)
    sink.open()
    return sink, made


@contextmanager
def writing(sink: Any) -> Iterator[None]:
    """A batch is under way within it, and through at its end."""
    rows = batch([log_record(number) for number in range(COUNT)])
    thread = threading.Thread(target=sink.write, args=(rows,))
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
    sink.close()


@pytest.fixture
def account(tmp_path: Path) -> Iterator[GoogleAccount]:
    made = GoogleAccount(tmp_path)
    yield made
    made.door.close()


def test_a_grant_that_is_refused_is_waited_for_and_a_new_key_is_read(
    table: FakeBigQuery, account: GoogleAccount, tmp_path: Path
) -> None:
    account.tokens.key = google_account().tokens.key  # its own signature is not known any more
    sink, made = sink_of(table, tmp_path, credentials_file=str(account.file))
    with writing(sink):
        problem = wait_until(lambda: made.meter.problem) or ""
        account.file.write_bytes(google_account().file.read_bytes())
    assert "invalid_grant" in problem
    assert "paused until that is corrected" in problem
    assert "PRIVATE KEY" not in problem
    assert (table.stored(), dead_letters(made)) == (EACH_ONCE, [])


def test_a_token_endpoint_that_is_away_is_an_outage(
    table: FakeBigQuery, account: GoogleAccount, tmp_path: Path
) -> None:
    account.door.close()
    sink, made = sink_of(table, tmp_path, credentials_file=str(account.file))
    with writing(sink):
        problem = wait_until(lambda: made.meter.problem) or ""
        account.file.write_bytes(google_account().file.read_bytes())
    assert "paused" not in problem
    assert (table.stored(), dead_letters(made)) == (EACH_ONCE, [])


def unknown(context: Any, *_: Any) -> None:
    """As Google says it of a token that was revoked."""
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid authentication credentials")


@pytest.mark.parametrize("call", ["append", "create"])
def test_a_token_that_is_not_known_any_more_is_asked_for_anew(
    table: FakeBigQuery, tmp_path: Path, call: str
) -> None:
    sink, made = sink_of(table, tmp_path)
    before = google_account().tokens.given
    if call == "append":
        table.faults.append(unknown)
    else:
        table.refuses.append(unknown)
    with writing(sink):
        pass
    assert google_account().tokens.given == before + 2
    assert (table.stored(), dead_letters(made)) == (EACH_ONCE, [])


def test_a_key_that_is_revoked_in_the_middle_of_a_batch_costs_and_doubles_nothing(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    tokens = google_account().tokens
    key, other = tokens.key, rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def revoked(asked: Any, context: Any) -> None:
        if table.appends == 2 and tokens.key is key:
            tokens.key = other
            unknown(context)

    table.rule = revoked
    sink, made = sink_of(table, tmp_path)
    try:
        with writing(sink):
            problem = wait_until(
                lambda: made.meter.problem and "invalid_grant" in made.meter.problem
            )
            assert problem
            assert sum(table.stored().values()) == 2
            tokens.key = key
    finally:
        tokens.key = key
    assert (table.stored(), dead_letters(made)) == (EACH_ONCE, [])


def test_a_right_that_is_missing_is_waited_for_and_costs_no_record(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    lacking = threading.Event()
    lacking.set()

    def denied(_: Any, context: Any) -> None:
        if lacking.is_set():
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "Permission 'TABLES_UPDATE_DATA' denied on resource",
            )

    table.rule = denied
    sink, made = sink_of(table, tmp_path)
    with writing(sink):
        problem = wait_until(lambda: made.meter.problem) or ""
        wait_until(lambda: table.appends >= 10, what="it is asked many times")
        lacking.clear()
    assert "TABLES_UPDATE_DATA" in problem
    assert "paused until that is corrected" in problem
    assert (table.stored(), dead_letters(made)) == (EACH_ONCE, [])
