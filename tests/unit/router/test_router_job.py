"""Where a job is to come, and what is seen of one that waits for its log."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.router.job.job import Job
from penstock.router.read.offset_spec import Goal
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.service import UnavailableError
from tests.support.admin import status_code
from tests.support.processes import free_port
from tests.support.waiting import wait_until
from tests.unit.router.test_router_config import load

LOGS, TRACES = StreamPartition("logs", 0), StreamPartition("traces", 0)
LIVES = {"logs": "a", "traces": "a"}
STARTED = {LOGS: 9, TRACES: 7}
AT = Offsets({LOGS: 9, TRACES: 3}, LIVES)
"""A sink that has yet to get four of the traces."""


def goal() -> Goal:
    return Goal(STARTED, LIVES, STARTED)


def test_a_sink_is_there_when_it_has_what_was_in_the_log_as_the_job_started() -> None:
    it = goal()
    it.log_is(LIVES, {LOGS: 12, TRACES: 99}, losses_are_accepted=True)
    assert not it.is_reached(AT)
    assert it.is_reached(Offsets(STARTED, LIVES))
    assert not it.is_reached(Offsets(STARTED, LIVES | {"logs": "b"}))


def test_one_record_of_a_partition_that_a_sink_does_not_know_is_waited_for() -> None:
    it = Goal({LOGS: 9, TRACES: 1}, LIVES, {LOGS: 9, TRACES: 1})
    assert not it.is_reached(Offsets({LOGS: 9}, LIVES))
    assert it.is_reached(Offsets({LOGS: 9, TRACES: 1}, LIVES))
    assert Goal({LOGS: 9, TRACES: 0}, LIVES, {LOGS: 9}).is_reached(Offsets({LOGS: 9}, LIVES))


def test_a_stream_that_is_deleted_is_not_waited_for_where_losses_are_accepted() -> None:
    it = goal()
    it.log_is({"logs": "a"}, {LOGS: 15}, losses_are_accepted=False)
    assert not it.is_reached(AT)
    it.log_is({"logs": "a"}, {LOGS: 15}, losses_are_accepted=True)
    assert it.is_reached(AT)


def test_what_a_stream_lost_at_its_end_or_by_being_made_again_is_not_waited_for() -> None:
    it = goal()
    it.log_is(LIVES, {LOGS: 12, TRACES: 3}, losses_are_accepted=True)
    assert it.is_reached(AT)
    it = Goal({LOGS: 99}, LIVES, {LOGS: 99})
    it.log_is({"logs": "b", "traces": "b"}, {LOGS: 12, TRACES: 3}, losses_are_accepted=True)
    assert it.is_reached(AT)


def test_a_sink_that_has_read_what_the_log_lost_is_not_there_yet() -> None:
    """Its next batch fails, or begins where the log ends."""
    it = goal()
    it.log_is(LIVES, {LOGS: 12, TRACES: 6}, losses_are_accepted=True)
    assert it.is_reached(Offsets({LOGS: 9, TRACES: 6}, LIVES))
    assert not it.is_reached(Offsets(STARTED, LIVES))


def test_a_job_that_waits_for_its_log_answers_to_its_names_alone_and_says_what_it_waits_for(
    tmp_path: Path,
) -> None:
    admin, hosts = f"127.0.0.1:{free_port()}", ["a.example.org"]
    logd, checkpoints = f"127.0.0.1:{free_port()}", str(tmp_path / "checkpoint")
    keys: dict[str, Any] = {"connect_timeout_s": 1.5, "admin_hosts": hosts}
    job = Job(load(tmp_path, checkpoint_dir=checkpoints, admin=admin, logd=logd, **keys))

    def answers() -> bool:
        try:
            return status_code(admin, "a.example.org") == 200
        except OSError:
            return False  # it does not listen yet

    try:
        with capture_logs() as logs, ThreadPoolExecutor(1) as thread:
            started = thread.submit(job.start)
            wait_until(answers)
            assert status_code(admin, "evil.example.org") == 421
            with pytest.raises(UnavailableError, match="logd"):
                started.result(60)
    finally:
        job.close()
    assert [it["logd"] for it in logs if it["event"] == "stream_lookup_started"] == [logd]
