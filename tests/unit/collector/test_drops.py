"""The drop journal: what is kept of a dropped record, which drops are recorded, and how long."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import shake_128
from pathlib import Path
from typing import Any

import orjson
import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.collector.agent.records_endpoint import RecordsEndpoint
from penstock.collector.checkpoint.recovery import DAMAGED_DROPS, DROPS, Sizes, open_data_directory
from penstock.collector.drops.journal import DropJournal, find_drops
from penstock.collector.drops.query import RecordQuery
from penstock.collector.drops.sampler import Drop, DropKind, DropSampler, Missed
from penstock.collector.spool.journal import Journal
from penstock.logd.storage import CommitLog, LogConfig
from penstock.service import Requester, UnavailableError
from tests.support.collector_graph import graph_of, log, process

FILTERED = DropKind("app", "quiet", "filtered")
THROTTLED = DropKind("app", "slow", "throttled")
SECOND = 1_000_000_000
DAY_S = 86_400.0
RECORD = "0f" * 16


class TwoClocks:
    """A clock that stands until it is set, an hour ago.

    A record from the future counts as of its arrival in the log, by the machine's clock.
    """

    def __init__(self) -> None:
        self.now_ns = SystemClock().unix_ns() - 3600 * SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns


def drop(number: int, *, kind: DropKind = FILTERED, text: str = "") -> Drop:
    return Drop(
        kind, f"shop-{number % 2}", f"{number:032x}", f"r{number}", "00", text or str(number)
    )


@asynccontextmanager
async def journal_in(
    path: Path,
    clock: TwoClocks,
    *,
    max_bytes: int = 1 << 22,
    max_age_s: float = DAY_S,
    kind: type[Journal] = Journal,
) -> AsyncIterator[DropJournal]:
    """An open journal whose commits run."""
    journal = kind(path, bytes_max=max_bytes, segment_age_s=max_age_s / 8)
    journal.open()
    drops = DropJournal(journal, DropSampler(1e6, 200), clock, max_age_s=max_age_s)
    running = [asyncio.create_task(one.run()) for one in (journal, drops)]
    yield drops
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await drops.offer()
    await journal.close()


async def found(drops: DropJournal, **query: Any) -> list[str]:
    """The texts of the drops that a query takes."""
    return [one["text"] async for one in drops.matching(RecordQuery(**query), Missed())]


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"service": "shop-1"}, ["1", "3"]),
        ({"trace_id": f"{2:032x}"}, ["2"]),
        ({"record_id": "r3"}, ["3"]),
        ({"text": "1"}, ["1"]),
        ({"step": "slow"}, ["3"]),
        ({"reason": "throt"}, ["3"]),
        ({"source": "other"}, []),
        ({"limit": 3}, ["1", "2", "3"]),
        ({"service": "shop-1", "limit": 1}, ["3"]),
        ({"trace_ids": frozenset({f"{2:032x}"}), "record_ids": frozenset({"r0"})}, ["0", "2"]),
        ({"record_ids": frozenset({"r0", "r2"})}, ["0", "2"]),
        ({"record_ids": frozenset({"r0"}), "service": "shop-1"}, []),
    ],
)
async def test_a_drop_is_found_by_what_it_says(
    tmp_path: Path, query: dict[str, Any], texts: list[str]
) -> None:
    async with journal_in(tmp_path, TwoClocks()) as drops:
        drops.add([drop(number) for number in range(3)])
        drops.add([drop(3, kind=THROTTLED)])
        await drops.flush()
        assert texts == await found(drops, **query)


async def test_a_text_with_escapes_is_found(tmp_path: Path) -> None:
    async with journal_in(tmp_path, TwoClocks()) as drops:
        drops.add([drop(1, text='he said "no"\nand left: ü')])
        await drops.flush()
        assert len(await found(drops, text='"no"\nand left: ü')) == 1


async def test_what_is_older_than_the_age_is_not_found_and_goes_from_the_disk(
    tmp_path: Path,
) -> None:
    clock = TwoClocks()
    async with journal_in(tmp_path, clock, max_age_s=800) as drops:
        drops.add([drop(1)])
        await drops.flush()
        clock.now_ns += 500 * SECOND
        drops.add([drop(2)])
        await drops.flush()
        assert await found(drops, from_ns=clock.now_ns - SECOND) == ["2"]
        clock.now_ns += 400 * SECOND
        assert await found(drops) == ["2"]
    async with journal_in(tmp_path, clock, max_age_s=800) as drops:
        assert await found(drops) == ["2"], "they are there after a restart"


async def test_the_oldest_make_room_for_the_newest(tmp_path: Path) -> None:
    async with journal_in(tmp_path, TwoClocks(), max_bytes=1 << 20) as drops:
        random = [shake_128(str(n).encode()).hexdigest(200) for n in range(12_000)]
        for first in range(0, len(random), 400):
            drops.add([drop(n, text=random[n]) for n in range(first, first + 400)])
            await drops.flush()
            assert drops.journal.used_bytes <= 1 << 20
        left = await found(drops)
        assert left == random[-len(left) :], "the newest are all there"
        assert 400 < len(left) < len(random)
        assert drops.lost == 0


async def test_an_end_while_the_oldest_make_room_loses_nothing(tmp_path: Path) -> None:
    class SlowJournal(Journal):
        removing, may_go_on = asyncio.Event(), asyncio.Event()

        @override
        async def delete_before(self, end: int) -> bool:
            self.removing.set()
            await self.may_go_on.wait()
            return await super().delete_before(end)

    async with journal_in(tmp_path, TwoClocks(), max_bytes=1 << 20, kind=SlowJournal) as drops:
        added: list[str] = []
        removing = asyncio.create_task(SlowJournal.removing.wait())
        offering = asyncio.create_task(drops.flush())
        while not removing.done():
            first = len(added)
            added += [shake_128(b"%d" % n).hexdigest(200) for n in range(first, first + 400)]
            drops.add([drop(n, text=added[n]) for n in range(first, first + 400)])
            offering = asyncio.create_task(drops.flush())
            await asyncio.wait([removing, offering], return_when=asyncio.FIRST_COMPLETED)
        offering.cancel()
        await asyncio.gather(offering, return_exceptions=True)
        SlowJournal.may_go_on.set()
        await drops.flush()
        left = await found(drops)
        assert left == added[-len(left) :]
        assert len(left) > 400
        assert drops.lost == 0


async def test_a_torn_end_is_cut_and_the_rest_is_read(tmp_path: Path) -> None:
    clock = TwoClocks()
    async with journal_in(tmp_path, clock) as drops:
        for number in range(3):
            drops.add([drop(number)])
            await drops.flush()
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes()[:-5])
    for mark in tmp_path.glob("*"):
        if mark.suffix not in (".log", ".index"):
            mark.unlink()  # as a kill leaves it: not closed
    async with journal_in(tmp_path, clock) as drops:
        assert await found(drops) == ["0", "1"]
        drops.add([drop(7)])
        await drops.flush()
        assert await found(drops) == ["0", "1", "7"]


async def test_what_was_not_recorded_is_said_with_the_next_that_is(tmp_path: Path) -> None:
    async with journal_in(tmp_path, TwoClocks()) as drops:
        drops.sampler.limit(1, 200)
        chosen = [drops.sampler.chooses(FILTERED, 5) for _ in range(30)]
        assert chosen == [True] * 10 + [False] * 20, "ten seconds of the rate may come at once"
        assert drops.sampler.chooses(THROTTLED, 5), "the first of its kind is always recorded"
        drops.add([drop(1)])
        await drops.flush()
        missed = Missed()
        assert [one["text"] async for one in drops.matching(RecordQuery(), missed)] == ["1"]
        assert missed == {FILTERED: 20}
        other = Missed()
        assert [one async for one in drops.matching(RecordQuery(step="slow"), other)] == []
        assert not other
        assert drops.facts()["not_recorded"] == 20
    log_ = CommitLog.open(tmp_path, LogConfig())
    again = Missed()
    assert [one["text"] for one in find_drops(log_, RecordQuery(), again)] == ["1"]
    assert again == {FILTERED: 20}
    log_.close()


def test_the_bucket_fills_again_and_each_kind_shows_once_a_second() -> None:
    sampler = DropSampler(2, 200)
    taken = sum(sampler.chooses(FILTERED, 0) for _ in range(1000))
    assert taken == 20
    later = sum(sampler.chooses(FILTERED, 5 * SECOND) for _ in range(1000))
    assert later == 10, "two a second for five seconds"
    assert sampler.chooses(THROTTLED, 5 * SECOND), "and the first of its kind"
    assert sampler.recorded == 31
    assert sampler.take_missed() == {FILTERED: 1970}
    assert sampler.take_missed() == {}


def test_a_journal_that_is_switched_off_costs_nothing_and_counts_nothing() -> None:
    sampler = DropSampler(0, 200)
    assert not sampler.chooses(FILTERED, 0)
    assert not sampler.missed


CHAIN = {
    "transforms": {
        "marked": {"type": "edit", "inputs": ["app"], "set": {"body": "'seen: ' + body"}},
        "quiet": {"type": "filter", "inputs": ["marked"], "where": "severity_number > 9"},
    }
}


def test_a_dropped_record_is_described_as_it_was_when_it_was_dropped_and_redacted() -> None:
    card = "4111 1111 1111 1111"
    line = log(f"pays with {card} " + "ü" * 300, trace_id="ab" * 16, record_id=RECORD)
    graph, sampler = graph_of(CHAIN), DropSampler(10, 200)
    outcome = process(graph, line, sampler=sampler)
    (one,) = outcome.drops
    assert one.kind == DropKind("app", "quiet", "filtered")
    assert (one.service, one.trace_id, one.record_id) == ("shop", "ab" * 16, RECORD)
    assert one.text.startswith("seen: pays with ")
    assert card not in one.text
    assert len(one.text.encode()) in (199, 200)
    assert not outcome.found, "what detectors find in it is not counted with what goes on"
    again = process(graph, line, sampler=sampler).drops
    assert [one.digest] == [other.digest for other in again]
    assert process(graph, log("x"), sampler=sampler).drops[0].digest != one.digest
    assert process(graph, line).drops == [], "without a sampler nothing is described"


def test_of_records_that_are_dropped_together_those_that_hold_something_are_redacted() -> None:
    keys: dict[str, Any] = {
        "transforms": {"no": {"type": "filter", "inputs": ["app"], "where": 'body == "kept"'}}
    }
    bodies = ["paid", "to ann@example.com", "kept", "kept", "4111 1111 1111 1111", "x@libssh.org"]
    outcome = process(graph_of(keys), *map(log, bodies), sampler=DropSampler(10, 200))
    texts = ["paid", "to [redacted:pii]", "[redacted:pci]", "x@libssh.org"]
    assert texts == [drop.text for drop in outcome.drops]
    assert len({drop.digest for drop in outcome.drops}) == len(texts)
    edit = {"type": "edit", "inputs": ["app"], "set": {"body": "'ann@' + 'example.com'"}}
    keys["transforms"] = {"e": edit, "no": {**keys["transforms"]["no"], "inputs": ["e"]}}
    (one,) = process(graph_of(keys), log("paid"), sampler=DropSampler(10, 200)).drops
    assert one.text == "[redacted:pii]"


def test_a_span_that_tail_sampling_holds_is_a_drop_once_its_trace_is_dropped() -> None:
    rules = [{"where": 'status_code == "ERROR"'}]
    tail = {"type": "tail_sample", "inputs": ["app"], "wait_s": 10, "rules": rules}
    graph, sampler = graph_of({"transforms": {"t": tail}}), DropSampler(100, 200)
    spans = [
        {"kind": "span", "schema": "span/1.0", "time_unix_nano": 1, "end_time_unix_nano": 2,
         "trace_id": f"{number:032x}", "span_id": f"{number:016x}", "name": f"GET /{number}",
         "status_code": "ERROR" if number == 1 else "OK", "resource": {"service.name": "shop"}}
        for number in (1, 2)
    ]  # fmt: skip
    outcome = process(graph, *map(orjson.dumps, spans), sampler=sampler)
    assert (outcome.refused, outcome.drops, graph.drops(0, sampler)) == ([], [], [])
    graph.flush(0, 0)
    assert len(graph.flush(11 * SECOND, 11 * SECOND)["t"]) == 1
    (dropped,) = graph.drops(11 * SECOND, sampler)
    assert dropped.kind == DropKind("app", "t", "sampled")
    assert (dropped.trace_id, dropped.service, dropped.text) == (f"{2:032x}", "shop", "GET /2")
    assert graph.drops(12 * SECOND, sampler) == []


def test_no_text_is_kept_where_none_may_be() -> None:
    (one,) = process(graph_of(CHAIN), log("secret"), sampler=DropSampler(10, 0)).drops
    assert one.text == ""


def test_a_metric_is_described_by_its_name() -> None:
    line = orjson.dumps(
        {"schema": "metric/1.0", "kind": "metric", "time_unix_nano": 1, "name": "app.requests",
         "metric_type": "gauge", "unit": "1", "value": 1}
    )  # fmt: skip
    keys = {"transforms": {"no": {"type": "filter", "inputs": ["app"], "where": "kind == 'log'"}}}
    (one,) = process(graph_of(keys), line, sampler=DropSampler(10, 200)).drops
    assert one.text == "app.requests"


async def test_a_journal_that_cannot_be_opened_is_set_aside(tmp_path: Path) -> None:
    sizes = Sizes(1 << 20, 1 << 20, 1 << 20)
    data = tmp_path / "data"
    journal = Journal(data / DROPS, bytes_max=1 << 20)
    journal.open()
    running = asyncio.create_task(journal.run())
    drops = DropJournal(journal, DropSampler(10, 200), TwoClocks(), max_age_s=DAY_S)
    for number in range(5):
        drops.add([drop(number)])
        await drops.flush()
    running.cancel()
    await journal.close()
    (segment,) = (data / DROPS).glob("*.log")
    (data / DROPS / f"{3:020d}.log").write_bytes(segment.read_bytes())  # begins within the other
    found_ = open_data_directory(data, sizes, where="test")
    assert found_.drops.log.end_offset == 0
    assert [*(data / DAMAGED_DROPS).iterdir()]
    for journal in (found_.spool, found_.urgent, found_.quarantine, found_.drops):
        await journal.close()
    found_.lock.release()


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"service": 5}, "service must be a text"),
        ({"from_ns": "soon"}, "from_ns must be a number from 0"),
        ({"limit": -1}, "limit must be a number from 0"),
        ({"limit": True}, "limit must be a number from 0"),
        ({"trace_ids": "t"}, "trace_ids must be a list of texts"),
        ({"record_ids": [""]}, "record_ids must be a list of texts"),
        ({"record_ids": ["r"] * 2001}, "record_ids has 2001 ids; 2000 are allowed"),
    ],
)
def test_a_wrong_question_is_refused(request_: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RecordQuery.read(request_)
    assert RecordQuery.read({"do": "drops", "text": "x"}) == RecordQuery(text="x")
    ids = RecordQuery(trace_ids=frozenset({"t", "u"}))
    assert RecordQuery.read(json.loads(json.dumps(ids.as_request()))) == ids


async def ask_in_vain(request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    if "do" in request:
        raise UnavailableError("worker 1: nothing for 120 s", fix="ask again")
    yield {}


async def two_workers(request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    key = {"drops": "drop", "quarantine": "kept"}[request["do"]]
    for worker, time_ns in ((0, 3), (0, 5), (1, 4)):
        yield {key: {"time_unix_nano": time_ns, "worker": worker, "raw": "secret"}}
    yield {"missed": {"step": "a", "records": 1}} if key == "drop" else {"ok": True}


async def test_the_endpoint_has_the_newest_of_all_workers_and_no_bytes() -> None:
    endpoint = RecordsEndpoint(
        {"drops": two_workers, "quarantine": two_workers},
        asyncio.get_running_loop(),
        is_guarded=False,
    )
    asker = Requester("", None, "127.0.0.1:5")
    status, answer = await asyncio.to_thread(endpoint.answer, asker, b'{"limit": 2}')
    newest = [{"time_unix_nano": 4, "worker": 1}, {"time_unix_nano": 5, "worker": 0}]
    assert (status, answer["drops"], answer["quarantine"]) == ("200 OK", newest, newest)
    assert answer["missed"] == [{"step": "a", "records": 1}]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", "400"),
        (b"[]", "400"),
        (b'{"service": 5}', "400"),
        (b"[" * 100_000, "400"),
        (b"{}", "503"),
    ],
)
async def test_a_question_by_http_that_cannot_be_answered_says_why(
    body: bytes, status: str
) -> None:
    actions = {"drops": ask_in_vain, "quarantine": ask_in_vain}
    endpoint = RecordsEndpoint(actions, asyncio.get_running_loop(), is_guarded=False)
    asker = Requester("", None, "127.0.0.1:5")
    found, answer = await asyncio.to_thread(endpoint.answer, asker, body)
    assert found.startswith(status)
    assert answer["error"]


@pytest.mark.parametrize(("is_guarded", "status"), [(False, "403"), (True, "200")])
async def test_another_machine_gets_an_answer_only_where_clients_show_a_token(
    status: str, *, is_guarded: bool
) -> None:
    endpoint = RecordsEndpoint(
        {"drops": two_workers, "quarantine": two_workers},
        asyncio.get_running_loop(),
        is_guarded=is_guarded,
    )
    asker = Requester("", None, "10.0.0.7:5")
    found, _ = await asyncio.to_thread(endpoint.answer, asker, b"{}")
    assert found.startswith(status)
