"""The search page's form, and searches beside the event loop: bounded, cancelled, forgotten."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.base.errors import UnavailableError
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.search.form import FormError, read_form
from penstock.deploy.console.search.searches import (
    ABANDONED_S,
    MAX_ANSWERS,
    THREADS_EACH,
    Searches,
    TooManySearchesError,
)
from penstock.deploy.trace.explain import RecordTrace, Trace
from penstock.deploy.trace.find import FoundRecord, Progress
from penstock.deploy.trace.parts import PartsClient
from penstock.deploy.trace.question import ConditionError, TraceQuestion
from tests.support.collector_files import MovableClock
from tests.support.console import (
    ACT,
    READ,
    FakeConsoleLog,
    FakePart,
    Names,
    a_status,
    ask,
    running_console,
    token_files,
)
from tests.support.waiting import wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
SECRET = "a customer's name"


def read(**sent: object) -> TraceQuestion:
    return read_form(sent, streams={"logs", "traces"}, max_records=100)


def test_a_form_becomes_a_question() -> None:
    sent = {
        "service": " checkout ", "text": "card declined", "severity": "17",
        "stream": "logs, traces", "from": "2026-01-31T03:00:00Z", "to": "2026-01-31T04:00:00Z",
        "limit": "20",
    }  # fmt: skip
    assert read(**sent) == TraceQuestion(
        service="checkout",
        text="card declined",
        severity=17,
        streams=("logs", "traces"),
        start=datetime(2026, 1, 31, 3, tzinfo=UTC),
        end=datetime(2026, 1, 31, 4, tzinfo=UTC),
        limit=20,
    )
    assert read(trace_id=TRACE.upper(), ways="no") == TraceQuestion(
        trace_ids=(TRACE,), limit=100, with_ways=False
    )
    where = "service = 'shop' and body like '%declined%'"
    assert read(where=where, stream="logs") == TraceQuestion(
        where=where, streams=("logs",), limit=100
    )
    files = (Path("/etc/penstock/job.yaml"),)
    sent = {"text": "x", "stopped": "yes"}
    found = read_form(sent, streams=(), max_records=1, job_files=files)
    assert found.job_files == files
    assert read(position="logs/0/4711").positions == ("logs/0/4711",)
    assert read(text="x", after="logs/0/4711").after == "logs/0/4711"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("trace_id", "0af7", "32 hexadecimal digits"),
        ("record_id", "two words", "no space"),
        ("severity", "25", "from 0 to 24"),
        ("severity", "-1", "from 0 to 24"),
        ("limit", "101", "from 1 to 100"),
        ("limit", "0", "from 1 to 100"),
        ("stream", "logs nowhere", "there is no stream nowhere"),
        ("stream", ",".join(f"s{n}" for n in range(17)), "at most 16"),
        ("from", "yesterday", "how long ago"),
        ("from", "4711", "how long ago"),
        ("to", "2020-01-01T00:00:00Z", "not after the begin"),
        ("position", "logs/4711", "logs/0/4711"),
        ("after", "logs/0/x", "logs/0/4711"),
        ("text", "x" * 257, "at most 256"),
        ("text", ["x"], "at most 256"),
        ("where", "x" * 4001, "at most 4000"),
        ("where", "body is null", "stands alone"),
        ("stopped", "maybe", "yes or no"),
        ("stopped", "yes", "names no job file"),
        ("colour", "red", "no such field"),
    ],
)
def test_a_field_that_is_wrong_gets_the_reason(field: str, value: object, words: str) -> None:
    sent = {"service": "checkout", **({"from": "1h"} if field == "to" else {}), field: value}
    with pytest.raises(FormError) as refused:
        read(**sent)
    assert [*refused.value.fields] == [field]
    assert words in refused.value.fields[field]


def test_a_form_that_does_not_say_what_to_look_for_is_refused() -> None:
    for sent in ({}, {"stream": "logs", "from": "1h"}, {"position": "logs/0/1", "service": "x"}):
        with pytest.raises(FormError) as refused:
            read(**sent)
        assert [*refused.value.fields] == ["service"]


def test_all_that_is_wrong_is_said_at_once_and_unknown_streams_are_left_to_logd() -> None:
    with pytest.raises(FormError) as refused:
        read(trace_id="x", stream="nowhere", severity="x")
    assert {*refused.value.fields} == {"trace_id", "stream", "severity"}
    found = read_form({"text": "x", "stream": "nowhere"}, streams=(), max_records=1)
    assert found.streams == ("nowhere",)


class Looking:
    """A search that goes on until a test ends it, or it is ended."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.looks_again = threading.Semaphore(0)
        self.is_found = False

    def __call__(self, config: ConsoleConfig, question: TraceQuestion, progress: Progress) -> Trace:
        self.begun.release()
        while not self.is_found:
            assert self.looks_again.acquire(timeout=30)
            progress.looked_at += 1
            if progress.is_to_end():
                return Trace([record()], is_ended=True)
        return Trace([record()], looked_at=progress.looked_at)


def record() -> RecordTrace:
    value = json.dumps({"kind": "log", "body": SECRET}).encode()
    sink = {"job": "main", "sink": "lake", "fate": "waiting", "reason": "not so far"}
    return RecordTrace(FoundRecord("logs", 0, 7, value=value), None, [sink])


@pytest.fixture
def looking() -> Iterator[Looking]:
    made = Looking()
    yield made
    made.is_found = True
    made.looks_again.release(100)
    # A search that ended later would be in what the next test captures of the log.
    wait_until(lambda: all(it.name != "penstock-search" for it in threading.enumerate()))


def searches_of(looking: Any, clock: MovableClock | None = None, **bounds: Any) -> Searches:
    config = ConsoleConfig.model_validate({"search": bounds})
    return Searches(config, clock or MovableClock(), looking)


QUESTION = TraceQuestion(text=SECRET)


def told(searches: Searches, name: str) -> dict[str, Any]:
    found = searches.describe(name)
    assert found is not None
    document: dict[str, Any] = json.loads(found)
    return document


def ended(searches: Searches, name: str) -> dict[str, Any]:
    wait_until(lambda: told(searches, name)["state"] != "running")
    wait_until(lambda: not searches.running)
    return told(searches, name)


def test_a_search_says_how_far_it_is_and_then_what_it_found(looking: Looking) -> None:
    searches = searches_of(looking)
    name = searches.start(QUESTION)
    looking.looks_again.release()
    wait_until(lambda: told(searches, name)["progress"]["looked_at"] == 1)
    assert told(searches, name)["state"] == "running"
    looking.is_found = True
    looking.looks_again.release()
    done = ended(searches, name)
    assert (done["state"], searches.ended["done"]) == ("done", 1)
    (found,) = done["answer"]["records"]
    assert (found["text"], found["sinks"][0]["says"]) == (SECRET, ["not so far"])


def test_so_many_searches_run_at_a_time_and_a_cancelled_one_makes_room(looking: Looking) -> None:
    searches = searches_of(looking, max_concurrent=2)
    first, _ = searches.start(QUESTION), searches.start(QUESTION)
    with pytest.raises(TooManySearchesError, match="2 searches are running"):
        searches.start(QUESTION)
    assert searches.refused == 1
    assert searches.cancel(first)

    def is_ended() -> bool:
        looking.looks_again.release()  # the other one may have taken the last
        return searches.ended["cancelled"] == 1

    wait_until(is_ended)
    assert told(searches, first)["state"] == "cancelled"
    assert "answer" not in told(searches, first)
    searches.start(QUESTION)
    assert not searches.cancel("another")
    assert searches.describe("another") is None


def test_a_cancelled_search_gives_its_place_away_before_its_thread_ends(looking: Looking) -> None:
    searches = searches_of(looking, max_concurrent=1)
    for _ in range(THREADS_EACH - 1):
        assert searches.cancel(searches.start(QUESTION))
        assert searches.running == 0
    searches.cancel(searches.start(QUESTION))
    with pytest.raises(TooManySearchesError, match="1 searches are running"):
        searches.start(QUESTION)  # threads that do not end are bounded, too


def test_one_search_at_a_time_reads_the_files_of_stopped_jobs(looking: Looking) -> None:
    searches = searches_of(looking)
    by_files = replace(QUESTION, job_files=(Path("job.yaml"),))
    first = searches.start(by_files)
    with pytest.raises(TooManySearchesError, match="files of stopped jobs"):
        searches.start(by_files)
    searches.start(QUESTION)
    searches.cancel(first)
    with pytest.raises(TooManySearchesError, match="files of stopped jobs"):
        searches.start(by_files)  # it may still have Spark


def test_what_is_wrong_with_a_condition_is_said_of_its_field() -> None:
    def refuse(config: ConsoleConfig, question: TraceQuestion, progress: Progress) -> Trace:
        raise ConditionError("it has no column boddy")

    searches = searches_of(refuse)
    answer = ended(searches, searches.start(TraceQuestion(where="boddy = 1")))["answer"]
    assert answer["fields"] == {"where": "it has no column boddy"}


def test_a_search_that_takes_too_long_ends_with_what_it_found(looking: Looking) -> None:
    clock = MovableClock()
    searches = searches_of(looking, clock, timeout_s=3)
    name = searches.start(QUESTION)
    clock.advance(4)
    looking.looks_again.release()
    answer = ended(searches, name)["answer"]
    assert (answer["ended"], len(answer["records"]), answer["complete"]) == (True, 1, False)


def test_a_search_that_nobody_asks_for_is_ended_and_its_answer_forgotten(looking: Looking) -> None:
    clock = MovableClock()
    searches = searches_of(looking, clock, timeout_s=600)
    left = searches.start(QUESTION)
    clock.advance(ABANDONED_S + 1)
    looking.looks_again.release()
    wait_until(lambda: searches.ended["cancelled"] == 1)
    wait_until(lambda: not searches.running)
    looking.is_found = True
    searches.start(QUESTION)
    assert searches.describe(left) is None


def test_answers_are_kept_until_there_are_too_many(looking: Looking) -> None:
    looking.is_found = True
    searches = searches_of(looking)
    names = []
    for _ in range(MAX_ANSWERS + 2):
        names.append(searches.start(QUESTION))
        wait_until(lambda: not searches.running)
    assert searches.describe(names[0]) is None
    assert searches.describe(names[2]) is not None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnavailableError("logd: nobody answers", fix="start it"), "nobody answers; start it"),
        (OSError("no socket"), "no socket"),
    ],
)
def test_a_search_that_cannot_be_made_says_why(error: Exception, said: str) -> None:
    def fail(config: ConsoleConfig, question: TraceQuestion, progress: Progress) -> Trace:
        raise error

    searches = searches_of(fail)
    answer = ended(searches, searches.start(QUESTION))
    assert (answer["state"], searches.ended["failed"]) == ("failed", 1)
    assert said in answer["answer"]["error"]


def test_the_log_names_neither_the_question_nor_a_record(looking: Looking) -> None:
    looking.is_found = True
    searches = searches_of(looking)
    with capture_logs() as logs:
        ended(searches, searches.start(QUESTION))
    assert [(it["event"], it["state"]) for it in logs] == [("search_ended", "done")]
    assert SECRET not in json.dumps(logs)


async def test_the_end_of_the_console_ends_its_searches(looking: Looking) -> None:
    searches = searches_of(looking)
    searches.start(QUESTION)
    looking.looks_again.release()
    await searches.close()
    assert searches.running == 0


def test_only_who_may_look_may_search(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        **token_files(tmp_path),
        "logd": "127.0.0.1:1",
        "read_without_token": False,
    }
    form = json.dumps({"text": "x"})
    with running_console(tmp_path, {}, FakeConsoleLog(), **more) as console:
        codes = [ask(console, "/api/searches", it, form)[0] for it in ("", "x" * 24, READ, ACT)]
        assert codes == [401, 401, 200, 200]
        name = ask(console, "/api/searches", READ, form)[1]["id"]
        path = f"/api/searches/{name}"
        assert ask(console, path, "")[0] == 401
        wait_until(lambda: ask(console, path, READ)[1]["state"] == "failed")
        assert "logd" in ask(console, path, READ)[1]["answer"]["error"]
        assert ask(console, "/api/searches/another", READ)[0] == 404
        status, said = ask(console, "/api/searches", READ, json.dumps({"trace_id": "x"}))
        assert (status, said["code"], [*said["fields"]]) == (400, "FORM", ["trace_id"])
        assert ask(console, "/api/searches", READ, "[]")[0] == 400
        assert ask(console, "/api/searches", READ)[0] == 405


def test_a_console_without_a_logd_says_so(tmp_path: Path) -> None:
    with running_console(tmp_path, {}, FakeConsoleLog()) as console:
        status, said = ask(console, "/api/searches", "x", json.dumps({"text": "x"}))
        assert (status, said["code"]) == (404, "NO_LOG")


async def test_a_part_that_stands_for_several_is_asked_at_each_address() -> None:
    names = Names()
    part = FakePart(lambda: a_status("collector", "node-a"))
    part.answers[""] = (200, {"drops": [], "missed": [], "quarantine": []})
    parts = {"collector": part.url.replace("127.0.0.1", "collectors.test")}
    config = ConsoleConfig(parts=parts, each_address=("collector",))
    client = PartsClient(config, names.often())
    found = await client.statuses()
    assert [*found.collectors] == ["collector-127.0.0.1"]
    assert [*found.silent] == ["collector-127.0.0.2"]
    await client.ask_collector("collector-127.0.0.1", {"text": "x"})
    assert part.posted[0][0] == "/records"
    names.addresses = []
    assert "no such name" in (await client.statuses()).silent["collector"]
    part.close()
