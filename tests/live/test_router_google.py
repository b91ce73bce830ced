"""Who may write to Google: tokens of a service account, and of the machine."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_google import PROJECT, FakeCloudLogging, GoogleAccount, google_account
from tests.support.fault_door import FaultDoor, says
from tests.support.sink_batches import batch, dead_letters, log_record
from tests.support.sink_cases import CASES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

CASE = CASES["google_cloud_logging"]


@pytest.fixture
def door() -> Iterator[FaultDoor]:
    made = FaultDoor(FakeCloudLogging())
    yield made
    made.close()


def test_a_token_is_asked_for_once_and_again_when_it_is_not_known(
    door: FaultDoor, tmp_path: Path
) -> None:
    sink, context = CASE.sink(door, tmp_path, batch={"max_records": 2})
    tokens = google_account().tokens
    before = tokens.given
    sink.write(batch([log_record(number) for number in range(6)]))
    assert tokens.given == before + 1
    door.faults.append(says(401))
    sink.write(batch([log_record(number) for number in range(6, 8)], first=6))
    assert tokens.given == before + 2
    assert CASE.stored(door.backend) == Counter(range(8))
    assert dead_letters(context) == []


def test_another_accounts_key_is_waited_for_and_a_new_file_is_read(
    door: FaultDoor, tmp_path: Path
) -> None:
    stranger = GoogleAccount(tmp_path)
    stranger.tokens.key = google_account().tokens.key  # its own signature is not known any more
    sink, context = CASE.sink(door, tmp_path, credentials_file=str(stranger.file))
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0)]),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    stranger.file.write_bytes(google_account().file.read_bytes())
    writing.join(60)
    assert not writing.is_alive()
    assert "invalid_grant" in problem
    assert "paused until that is corrected" in problem
    assert "PRIVATE KEY" not in problem
    assert CASE.stored(door.backend) == Counter([0])
    stranger.door.close()


def test_a_token_endpoint_that_is_away_is_an_outage(door: FaultDoor, tmp_path: Path) -> None:
    account = GoogleAccount(tmp_path)
    account.door.close()
    sink, context = CASE.sink(door, tmp_path, credentials_file=str(account.file))
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0)]),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    account.file.write_bytes(google_account().file.read_bytes())
    writing.join(60)
    assert not writing.is_alive()
    assert "paused" not in problem
    assert CASE.stored(door.backend) == Counter([0])


def test_without_a_file_the_machines_own_credentials_are_taken(
    door: FaultDoor, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google_account().file))
    sink, _ = CASE.sink(door, tmp_path, credentials_file=None, project=PROJECT)
    sink.write(batch([log_record(0)]))
    assert CASE.stored(door.backend) == Counter([0])
