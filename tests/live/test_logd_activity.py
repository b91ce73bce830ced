"""The audit log survives the node that wrote it."""

import json
from functools import partial
from pathlib import Path

import pytest

from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

ROUNDS = 3


def made(log: LogClient) -> set[str]:
    """Names of the streams whose making is in `__activity`."""
    try:
        start, end = log.offsets("__activity")
    except RefusedError:
        return set()
    events = [
        json.loads(record.value or b"{}") for _, record in log.records("__activity", start, end)
    ]
    found = [event for event in events if event["kind"] == "stream.create"]
    assert len({event["id"] for event in found}) == len(found), "an event is there twice"
    return {event["facts"]["request"]["config"]["name"] for event in found}


def all_made(log: LogClient, wanted: set[str]) -> bool:
    return made(log) == wanted


def test_a_kill_right_behind_the_answer_loses_no_event(tmp_path: Path, nats_url: str) -> None:
    wanted: set[str] = set()
    with Logd(tmp_path, nats_url, [], activity={}) as logd:
        for number in range(ROUNDS):
            name = f"made-{number}"
            with logd.client() as log:
                log.create_stream(name, f"m.{number}")
                logd.daemon.kill()
            wanted.add(name)
            logd.daemon.start()
            with logd.client() as log:
                wait_until(partial(all_made, log, wanted), what=f"{wanted} are taken down")
        journal = logd.data_dir / "activity.journal"
        wait_until(lambda: journal.stat().st_size == 0, what="nothing waits any more")
