"""Dead letters delivered again while the job runs: who may, in which order, what is taken down."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from penstock.router.errors import StoppedError
from penstock.router.job.job import Job
from penstock.router.read.offsets import Offsets
from penstock.router.replay.bounded_run import ReplayStoppedError
from penstock.router.replay.service import PATH, REST_S, ReplayRequest, ReplayService
from penstock.router.streaming.query import SinkQuery
from penstock.service import Requester, UnavailableError, ask_admin
from tests.support.processes import free_port
from tests.support.scripted_spark import (
    ENDED,
    NoRows,
    ScriptedQuery,
    ScriptedRouted,
    ScriptedSpark,
    plan,
)
from tests.support.waiting import wait_until
from tests.unit.router.sink_rows import TestClock, context
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_letters import refuse
from tests.unit.router.test_router_query import Closable, as_session

TOKEN = "0123456789abcdef"


class Running:
    """A job with one sink, `lake`, that has refused two records."""

    def __init__(
        self, directory: Path, deliver: Callable[[ReplayRequest], int] | None = None, **keys: Any
    ) -> None:
        (directory / "token").write_text(f"{TOKEN}\n")
        refuse(directory, 7, 8)
        given = {"actions_token_file": str(directory / "token")} | keys
        dead_letters = str(directory / "dead")
        self.job = load(directory, dead_letter_dir=dead_letters, **given)
        self.directory = directory
        within = context(directory)
        assert isinstance(within.clock, TestClock)
        self.clock = within.clock
        self.sinks = [Closable(within)]
        self.spark = ScriptedSpark()
        self.query = SinkQuery(self.job, self.sinks[0], within, Offsets({}), routed=ScriptedRouted)
        self.query.poll(as_session(self.spark))
        plan(within.state_dir, [Offsets({})])
        self.spark_query.lastProgress = ENDED
        self.begun: list[ReplayRequest] = []
        self.delivered: list[ReplayRequest] = []
        self.goes_on = threading.Event()
        self.within = within
        self.opened_again = 0
        self.opens_not = ""
        self.replays = ReplayService(
            self.job, self.clock, deliver=deliver or self.deliver, reopen=self.reopen
        )

    @property
    def spark_query(self) -> ScriptedQuery:
        return self.spark.query

    def runs(self) -> bool:
        """Whether Spark is at it."""
        return self.spark.query.isActive

    @contextmanager
    def in_work(self) -> Iterator[None]:
        """Within it Spark has a batch, and the sink's query reads it."""
        read, goes_on = threading.Event(), threading.Event()

        class Slow(NoRows):
            @override
            def toArrow(self) -> pa.Table:
                read.set()
                assert goes_on.wait(60)
                return super().toArrow()

        with ThreadPoolExecutor(1) as thread:
            batch = thread.submit(self.spark_query.deliver, Slow(), 0)
            assert read.wait(60)
            try:
                yield
            finally:
                goes_on.set()
            batch.result(60)

    def deliver(self, replay: ReplayRequest) -> int:
        assert self.sinks[-1].closed == 1, "the sink has two writers"
        self.begun.append(replay)
        while not self.goes_on.wait(0.01):
            if replay.stop.is_set():
                raise ReplayStoppedError("as `replay_dead_letters` does", fix="")
        self.delivered.append(replay)
        return 2

    def reopen(self, name: str) -> Closable:
        if self.opens_not:
            raise OSError(self.opens_not)
        self.sinks.append(Closable(self.within))
        return self.sinks[-1]

    def ask(self, token: str = TOKEN, **wanted: Any) -> tuple[str, Any]:
        visitor = Requester(f"Bearer {token}" if token else "", None, "10.0.0.1:5")
        return self.replays.answer(visitor, json.dumps({"sink": "lake"} | wanted).encode())

    def poll(self) -> None:
        self.replays.poll({"lake": self.query})
        self.query.poll(as_session(self.spark))

    def is_done(self) -> bool:
        self.poll()
        return self.replays.info()["under_way"] is None

    def taken_down(self) -> list[dict[str, Any]]:
        text = (self.job.dead_letters / "replays.ndjson").read_text()
        return [json.loads(line) for line in text.splitlines()]


def test_the_sink_rests_while_its_letters_are_delivered_and_goes_on_then(tmp_path: Path) -> None:
    job = Running(tmp_path)
    with capture_logs() as logs:
        assert job.ask(do="replay", by="alice")[0] == "202 Accepted"
        assert job.ask(do="replay")[0] == "409 Conflict"  # one at a time
        job.poll()
        assert job.replays.info()["under_way"] == "lake"
        assert not job.runs()
        job.goes_on.set()
        wait_until(job.is_done)
    assert [(it.sink, it.target, it.by) for it in job.delivered] == [("lake", "lake", "alice")]
    assert job.runs(), "it was started again"
    assert [sink.closed for sink in job.sinks] == [1, 0]
    last = job.replays.info()["last"]
    assert (last["records"], last["problem"]) == (2, "")
    assert [(it["what"], it["by"]) for it in job.taken_down()] == [
        ("asked", "alice"), ("ended", "alice"),
    ]  # fmt: skip
    told = [(it["event"], it["by"]) for it in logs if it["event"].startswith("replay_")]
    assert told == [("replay_requested", "alice"), ("replay_completed", "alice")]


def test_a_batch_in_work_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    job = Running(tmp_path)
    with job.in_work():  # as while a batch is delivered
        assert job.ask(do="replay")[0] == "202 Accepted"
        job.poll()
        assert job.runs()
        job.clock.sleep(REST_S + 1)
        job.poll()
    assert job.runs()
    assert "busy with a batch" in job.replays.info()["last"]["problem"]
    assert job.replays.info()["under_way"] is None
    assert [it["what"] for it in job.taken_down()] == ["asked", "failed"]


def test_once_it_is_to_rest_no_batch_begins_and_none_is_called_a_failure(tmp_path: Path) -> None:
    job = Running(tmp_path)
    with job.in_work():
        assert not job.query.rest()
    with pytest.raises(StoppedError):
        job.spark_query.deliver(NoRows(), 0)
    job.spark_query.isActive = False  # which ends Spark's query
    job.query.poll(as_session(job.spark))
    assert job.query.failure is None
    assert not job.runs()
    assert job.query.rest()
    assert [sink.closed for sink in job.sinks] == [1]


def test_a_sink_that_need_not_rest_after_all_goes_on(tmp_path: Path) -> None:
    job = Running(tmp_path)
    with job.in_work():
        assert not job.query.rest()
    job.spark_query.isActive = False
    job.query.go_on()
    job.query.poll(as_session(job.spark))
    assert job.runs()
    assert job.query.failure is None
    assert [sink.closed for sink in job.sinks] == [0]


def test_a_replay_that_fails_leaves_the_job_running(tmp_path: Path) -> None:
    def fail(replay: ReplayRequest) -> int:
        replay.progress.records = 9
        raise RuntimeError("the destination is on fire")

    job = Running(tmp_path, fail)
    job.ask(do="replay")
    wait_until(job.is_done)
    assert job.replays.info()["last"]["problem"] == "the destination is on fire"
    assert (job.taken_down()[-1]["what"], job.taken_down()[-1]["records"]) == ("failed", 9)
    assert job.runs()
    assert job.ask(do="replay")[0] == "202 Accepted"  # another try is possible


def test_a_sink_that_does_not_open_again_is_tried_until_it_does(tmp_path: Path) -> None:
    job = Running(tmp_path)
    job.goes_on.set()
    job.opens_not = "no route to host"
    job.ask(do="replay")
    wait_until(lambda: not job.is_done() and job.query.failure)
    assert "cannot be opened again: no route to host" in str(job.query.problem)
    job.opens_not = ""
    job.poll()
    assert job.runs()
    job.spark_query.lastProgress = ENDED
    job.poll()
    assert job.query.problem is None


def test_nobody_may_without_the_token(tmp_path: Path) -> None:
    job = Running(tmp_path)
    for token in ("", "0123456789abcdeg", f"{TOKEN} "):
        for do in ("list", "replay", "stop"):
            assert job.ask(token, do=do)[0] == "401 Unauthorized"
    (tmp_path / "token").unlink()
    assert job.ask(do="replay")[0] == "503 Service Unavailable"
    assert job.replays.info()["possible"] is False
    (tmp_path / "token").write_text("\n")
    assert job.ask("", do="replay")[0] == "401 Unauthorized"
    assert not (job.job.dead_letters / "replays.ndjson").exists()
    without = Running(tmp_path, actions_token_file=None)
    assert without.ask(do="replay")[0] == "404 Not Found"


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    job = Running(tmp_path)
    for wanted in ({"sink": "attic", "do": "list"}, {"do": "burn"}, {}, {"sink": ["lake"]}):
        assert job.ask(**wanted)[0] == "400 Bad Request", wanted
    for to in ("attic", ["lake"]):
        assert job.ask(do="replay", to=to)[0] == "400 Bad Request"
    visitor = Requester(f"Bearer {TOKEN}", None, "")
    for body in (b"", b"[" * 10_000, b"[]", b"\xff"):
        assert job.replays.answer(visitor, body)[0] == "400 Bad Request"


def test_letters_are_listed_and_where_there_are_none_nothing_is_done(tmp_path: Path) -> None:
    job = Running(tmp_path)
    status, answer = job.ask(do="list")
    assert (status, answer["files"][0]["dead_letters"]) == ("200 OK", 2)
    assert answer["files"][0]["reason"] == "no such index"
    assert job.replays.info()["files"]["lake"] == 1
    for path in job.job.dead_letters.glob("lake/*.ndjson"):
        path.unlink()
    assert job.ask(do="replay")[0] == "409 Conflict"


def test_an_odd_file_hides_no_other_letters(tmp_path: Path) -> None:
    job = Running(tmp_path)
    (job.job.dead_letters / "lake" / "a.ndjson").write_text("[]\n")
    status, answer = job.ask(do="list")
    odd, whole = answer["files"]
    assert status == "200 OK"
    assert "line 1 is no JSON object" in odd["problem"]
    assert (odd["dead_letters"], whole["dead_letters"], whole["problem"]) == (0, 2, None)


def test_what_cannot_be_taken_down_is_not_done(tmp_path: Path) -> None:
    job = Running(tmp_path)
    (job.job.dead_letters / "replays.ndjson").mkdir()
    assert job.ask(do="replay")[0] == "500 Internal Server Error"
    assert job.replays.info()["under_way"] is None


def test_a_replay_is_seen_and_stopped_by_whoever_may(tmp_path: Path) -> None:
    job = Running(tmp_path)
    assert job.ask(do="stop") == ("409 Conflict", {"error": "no replay is under way"})
    job.ask(do="replay", by="alice")
    job.poll()
    wait_until(lambda: job.begun)
    (replay,) = job.begun
    progress = replay.progress
    progress.of, progress.done, progress.records = 3, 1, 20
    progress.meter.problem = "ConnectionRefusedError"
    shown = job.replays.info()["progress"]
    assert (shown["sink"], shown["done"], shown["of"], shown["unit"]) == ("lake", 1, 3, "files")
    assert job.replays.problem == "replay to lake: ConnectionRefusedError"
    assert job.ask(do="stop", sink="attic", by="bob")[0] == "409 Conflict", "that is another one"
    assert not replay.stop.is_set()
    assert job.ask(do="stop", by="bob")[0] == "202 Accepted"
    wait_until(job.is_done)
    last = job.replays.info()["last"]
    assert last["problem"].startswith("stopped by bob after 1 of 3 files, 20 records; ask again")
    assert [(it["what"], it["by"], it["peer"]) for it in job.taken_down()] == [
        ("asked", "alice", "10.0.0.1:5"),
        ("stop asked", "bob", "10.0.0.1:5"),
        ("stopped", "alice", "10.0.0.1:5"),
    ]
    assert job.taken_down()[-1]["records"] == 20
    assert job.replays.info()["progress"] is None
    assert job.runs(), "the sink goes on"
    assert job.ask(do="replay")[0] == "202 Accepted"


def test_a_replay_that_has_not_begun_is_stopped_at_once(tmp_path: Path) -> None:
    job = Running(tmp_path)
    with job.in_work():  # a batch is being delivered
        job.ask(do="replay")
        job.poll()
        job.ask(do="stop", by="bob")
        job.poll()
        assert "stopped by bob after nothing" in job.replays.info()["last"]["problem"]
    job.poll()
    assert job.runs()
    assert job.delivered == []


def test_the_job_s_end_ends_a_replay_and_none_begins_then(tmp_path: Path) -> None:
    job = Running(tmp_path)
    job.ask(do="replay")
    job.poll()
    job.replays.end()
    assert job.replays.join(30) is None
    assert "stopped by the job's end" in job.replays.info()["last"]["problem"]
    assert [it["what"] for it in job.taken_down()] == ["asked", "stopped"]
    assert job.ask(do="replay")[0] == "409 Conflict"
    (tmp_path / "other").mkdir()
    waiting = Running(tmp_path / "other")
    waiting.ask(do="replay")
    waiting.replays.end()  # before the sink rests
    assert [it["what"] for it in waiting.taken_down()] == ["asked", "stopped"]


def test_a_job_that_fails_ends_a_replay_that_was_asked_for(tmp_path: Path) -> None:
    """It waits for its log, which stays away; it is closed, and was never drained."""
    admin, nobody = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    keys: dict[str, Any] = {
        "checkpoint_dir": str(tmp_path / "checkpoint"),
        "connect_timeout_s": 1.5,
    }
    its = Running(tmp_path, admin=admin, logd=nobody, **keys)
    job = Job(its.job)

    def is_asked() -> bool:
        wanted = (b'{"do": "replay", "sink": "lake"}', TOKEN)
        try:
            return b"done" in ask_admin(admin, PATH, None, timeout_s=10, posted=wanted)
        except OSError:
            return False  # it does not listen yet

    with ThreadPoolExecutor(1) as thread:
        started = thread.submit(job.start)
        wait_until(is_asked)
        with pytest.raises(UnavailableError, match="logd"):
            started.result(60)
    job.close()
    assert [it["what"] for it in its.taken_down()] == ["asked", "stopped"]


def test_a_replay_whose_sink_hangs_is_named_at_the_end(tmp_path: Path) -> None:
    goes_on = threading.Event()
    job = Running(tmp_path, lambda _: int(goes_on.wait(30)))
    job.ask(do="replay")
    job.poll()
    job.replays.end()
    assert job.replays.join(0.01) == "lake"
    goes_on.set()
    assert job.replays.join(30) is None
