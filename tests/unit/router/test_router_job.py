"""What a job makes of what the log says, without Spark."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from penstock.router import job as router_job
from penstock.router.core.offsets import Offsets, Readable, StreamPartition
from penstock.router.core.starting import Subscription
from penstock.router.job import Job
from penstock.router.reading import LogState
from penstock.router.session import Session
from penstock.service import ConfigError, UnavailableError
from tests.support.admin import status_code
from tests.support.processes import free_port
from tests.unit.router.test_router_config import load

LOGS, TRACES = StreamPartition("logs", 0), StreamPartition("traces", 0)


class FakeLog:
    """Has what a test says of `logs` and `traces`."""

    def __init__(self, **ends: int) -> None:
        self.ends = ends
        self.life = "a"

    def state_now(self, streams: Subscription, *, may_be_gone: bool) -> LogState:
        assert may_be_gone
        names = [name for name in streams.names if name in self.ends]
        ends = {StreamPartition(name, 0): self.ends[name] for name in names}
        lives = {at.stream: self.life for at in ends}
        return LogState({at: Readable(0, end) for at, end in ends.items()}, lives, written=ends)

    def close(self) -> None:
        pass


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    config = load(
        tmp_path,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        streams=["logs", "traces"],
        source={"fail_on_data_loss": False},
    )
    job = Job(config)
    job._target = {LOGS: 9, TRACES: 7}
    job._incarnations = {"logs": "a", "traces": "a"}
    at = Offsets({LOGS: 9, TRACES: 3}, {"logs": "a", "traces": "a"})
    job._queries = [SimpleNamespace(name="lake", position=lambda: at)]  # type: ignore[list-item]
    yield job
    job._queries = []
    job.close()


def test_its_endpoint_answers_to_its_names_alone(tmp_path: Path) -> None:
    """It answers before a job looks for its streams; this one has none, and starts no more."""

    class NoLog(FakeLog):
        def state(self, *_: object, **__: object) -> LogState:
            raise ConfigError("there is no such stream", fix="create it")

    admin, hosts = f"127.0.0.1:{free_port()}", ["a.example.org"]
    checkpoint_dir = str(tmp_path / "checkpoint")
    job = Job(load(tmp_path, checkpoint_dir=checkpoint_dir, admin=admin, admin_hosts=hosts))
    job._log = NoLog()  # type: ignore[assignment]
    try:
        with pytest.raises(ConfigError, match="there is no such stream"):
            job.start()
        assert status_code(admin, "a.example.org") == 200
        assert status_code(admin, "evil.example.org") == 421
    finally:
        job.close()


def test_a_stream_that_is_deleted_is_told_of_and_not_waited_for_where_losses_are_accepted(
    job: Job,
) -> None:
    job._log = FakeLog(logs=12, traces=7)  # type: ignore[assignment]
    assert job._look_at_log()
    assert not job.has_caught_up()
    job._log = FakeLog(logs=15)  # type: ignore[assignment]
    assert job._look_at_log()
    assert job._log_problem == "logd: it has no stream 'traces'"
    assert job._ends == {LOGS: (0, 15)}
    assert job.has_caught_up()


def test_what_a_stream_lost_at_its_end_or_by_being_made_again_is_not_waited_for(job: Job) -> None:
    job._log = FakeLog(logs=12, traces=3)  # type: ignore[assignment]
    assert job._look_at_log()
    assert job.has_caught_up()
    job._log.life = "b"  # type: ignore[attr-defined]
    job._target = {LOGS: 99}
    assert job._look_at_log()
    assert job.has_caught_up()


def test_the_log_says_what_a_start_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> Session:
        raise UnavailableError("no Java", fix="none")

    monkeypatch.setattr(router_job, "first_state", lambda *_: LogState({}, {}))
    monkeypatch.setattr(Session, "start", start)
    sinks = {"lake": {"type": "console"}}
    keys = {"checkpoint_dir": str(tmp_path / "checkpoint"), "admin": "127.0.0.1:0"}
    job = Job(load(tmp_path, sinks=sinks, **keys))
    with capture_logs() as said, pytest.raises(UnavailableError, match="no Java"):
        job.start()
    job.close()
    assert [it["event"] for it in said] == ["looking for the streams", "starting Spark"]
