"""Explode, reduce and tail sampling: one record becomes several, or several become few."""

from typing import Any, cast

import orjson
import pytest
from pydantic import ValidationError

from penstock.base.clock import SystemClock
from penstock.collector.agent.route_fingerprint import UNKNOWN, route_fingerprint
from penstock.collector.delivery.core import Delivery, Take
from penstock.collector.delivery.ordered_queue import Limits
from penstock.collector.delivery.pipeline import Pipeline
from penstock.collector.ledger import Account, Ledger
from penstock.collector.spool.quarantine import Refusal
from penstock.collector.transforms.graph.graph import Chunk, Graph, Outcome
from penstock.collector.transforms.graph.wiring import WiringError
from penstock.collector.transforms.transform import DropReason
from tests.support.collector_graph import (
    RESOURCE,
    config_of,
    delivered,
    graph_of,
    log,
    process,
    total,
)

SECOND = 1_000_000_000


def graph_with(section: dict[str, Any], **more: Any) -> Graph:
    """A graph of one transform."""
    return graph_of({"transforms": {"t": {"inputs": ["app"], **section}, **more}})


def records_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [record for _, record in delivered(outcome)]


def flushed(graph: Graph, now_ns: int, *, everything: bool = False) -> list[dict[str, Any]]:
    """What the transform makes at a time."""
    lines = graph.flush(now_ns, now_ns, everything=everything).get("t", [])
    return [orjson.loads(line) for line in lines]


def is_flush_due(graph: Graph) -> bool:
    return graph.is_flush_due


# Explode.


def test_each_item_of_an_array_becomes_a_record() -> None:
    text = '[{"a": 1, "b": {"c": 2}}, "plain", 7, [1, 2], null, true, {}]'
    graph = graph_with({"type": "explode", "index": "place"})
    outcome = process(graph, log(text, attributes={"kept": "k"}))
    found = records_of(outcome)
    assert [record["body"] for record in found] == ["", "plain", "7", "[1,2]", "null", "true", ""]
    assert found[0]["attributes"] == {"kept": "k", "a": 1, "b.c": 2, "place": 0}
    assert found[6]["attributes"] == {"kept": "k", "place": 6}
    assert outcome.copies == 6
    assert graph.counts()["t"] == {"received": 1, "sent": 7}
    assert [key for key in outcome.batches] == [("telemetry.logs.shop", n) for n in range(7)]  # noqa: C416


def test_a_list_of_an_attribute_is_taken_apart() -> None:
    section = {"type": "explode", "field": "attributes.tags"}
    found = records_of(process(graph_with(section), log(attributes={"tags": ["a", "b"], "n": 1})))
    assert [one["attributes"] for one in found] == [{"tags": "a", "n": 1}, {"tags": "b", "n": 1}]


def test_an_array_within_an_object_has_its_key_named() -> None:
    text = '{"Records": [{"eventName": "Put"}, {"eventName": "Get"}]}'
    section = {"type": "explode", "field": "attributes.doc", "items": "Records", "prefix": "aws."}
    found = records_of(process(graph_with(section), log("b", attributes={"doc": text})))
    assert [one["attributes"] for one in found] == [
        {"aws.eventName": "Put"}, {"aws.eventName": "Get"}
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["no json", "{}", '"text"', "[", "7", "[" * 5000])
def test_what_is_no_array_is_passed_on_or_refused(text: str) -> None:
    (record,) = records_of(process(graph_with({"type": "explode"}), log(text)))
    assert record["body"] == text
    section = {"type": "explode", "on_failure": "quarantine"}
    (refused,) = process(graph_with(section), log(text)).refused
    assert refused.reason == "transform t: field is no array"


def test_an_empty_array_is_passed_on_and_one_that_is_too_long_refused() -> None:
    graph = graph_with({"type": "explode", "max_items": 2})
    outcome = process(graph, log("[]"), log("[1, 2]"), log("[1, 2, 3]"))
    assert [record["body"] for record in records_of(outcome)] == ["[]", "1", "2"]
    (refused,) = outcome.refused
    assert refused.reason == "transform t: the array has more than 2 items (max_items)"
    assert total(outcome) == 3 + outcome.copies


def test_a_record_that_would_become_too_many_bytes_is_refused_and_counted() -> None:
    graph = graph_with({"type": "explode", "max_items": 1000, "max_bytes": 64 * 1024})
    small, many = '["i"]', orjson.dumps(["i"] * 1000).decode()
    wide = {"attributes": {"shared": "x" * 1000}}
    outcome = process(
        graph, log(small, **wide), log(many, **wide), log(orjson.dumps([1] * 1001).decode())
    )
    assert len(records_of(outcome)) == 1
    assert [one.reason for one in outcome.refused] == [
        "transform t: its items become more than 65536 bytes (max_bytes)",
        "transform t: the array has more than 1000 items (max_items)",
    ]
    counts = graph.counts()["t"]
    assert (counts["parts_too_large"], counts["too_many_items"]) == (1, 1)
    assert counts["quarantined"] == 2


def test_items_go_on_through_later_transforms_each_by_itself() -> None:
    more = {"type": "filter", "inputs": ["t"], "where": 'body != "2"'}
    outcome = process(graph_with({"type": "explode"}, later=more), log("[1, 2, 3]"))
    assert [record["body"] for record in records_of(outcome)] == ["1", "3"]
    assert outcome.ended == {DropReason.FILTERED: 1}
    assert total(outcome) == 1 + outcome.copies


def test_an_item_that_makes_no_record_is_refused_with_the_transforms_name() -> None:
    more = {"type": "edit", "inputs": ["t"], "set": {"severity_number": "int(body)"}}
    outcome = process(graph_with({"type": "explode"}, later=more), log("[9, 99]"))
    assert [record["severity_number"] for record in records_of(outcome)] == [9]
    (refused,) = outcome.refused
    assert refused.reason.startswith("transform later: ")


def test_copies_that_a_state_numbers_have_no_fingerprint() -> None:
    explode = {"type": "explode", "inputs": ["app"]}
    dedupe = {"type": "dedupe", "inputs": ["e"]}
    given = config_of({"transforms": {"e": explode}})
    assert route_fingerprint(given, graph_of({"transforms": {"e": explode}})) != UNKNOWN
    both = {"transforms": {"e": explode, "d": dedupe}}
    assert route_fingerprint(config_of(both), graph_of(both)) == UNKNOWN


class Ends:
    """Where records leave the pipeline: bytes handed over between two waits, and refusals."""

    def __init__(self) -> None:
        self.slices = [0]
        self.delivery = Delivery(Limits(), jitter=lambda: 0)
        self.refusals: list[Refusal] = []

    def handle(self, take: Take) -> None:
        """Records go on."""
        self.slices[-1] += take.records.size

    async def wait_for_room(self, *, urgent: bool = False) -> None:
        """There is room."""
        del urgent
        self.slices.append(0)

    async def put(self, refusals: list[Refusal]) -> int:
        self.refusals += refusals
        return 0


async def through_pipeline(graph: Graph, *lines: bytes) -> tuple[Ends, Account]:
    ends, ledger = Ends(), Ledger()
    pipeline = Pipeline(
        cast("Any", ends), cast("Any", ends), ledger,
        graph=graph, resource={}, clock=SystemClock(),
    )  # fmt: skip
    ledger.read("app", len(lines))
    await pipeline.take(Chunk("app", 0, range(1, 1 + len(lines)), lines, RESOURCE, 5, origin="o"))
    assert pipeline.taking == {"o": 0}
    return ends, ledger["app"]


async def test_a_record_of_which_several_parts_are_refused_is_kept_once() -> None:
    more = {"type": "edit", "inputs": ["t"], "set": {"severity_number": "int(body)"}}
    graph = graph_with({"type": "explode"}, later=more)
    ends, account = await through_pipeline(graph, log("[9, 99, 98]"), log("[97]"), log("[1]"))
    assert [(one.sequence, one.count) for one in ends.refusals] == [(1, 2), (2, 1)]
    assert ends.refusals[0].reason.startswith("transform later: ")
    assert (account.quarantined, account.copied, account.pending) == (3, 2, 0)


async def test_what_explode_makes_of_large_records_waits_for_room() -> None:
    filler = {f"a{number}": "x" * 32_000 for number in range(7)}
    lines = [log("[1, 2, 3, 4]", attributes=filler)] * 40
    ends, _ = await through_pipeline(graph_with({"type": "explode"}), *lines)
    assert sum(ends.slices) > 160 * 7 * 32_000
    assert max(ends.slices) < 6_000_000


# Reduce.


def order(key: str, **attributes: Any) -> bytes:
    body = attributes.pop("body", "b")
    return log(body, attributes={"order": key, **attributes})


REDUCE = {
    "type": "reduce",
    "key": "attributes.order",
    "window_s": 10,
    "merge": {
        "body": "concat", "attributes.sum": "sum", "attributes.min": "min",
        "attributes.max": "max", "attributes.last": "last", "attributes.all": "list",
    },
}  # fmt: skip


def test_records_of_a_key_become_one_when_their_time_is_over() -> None:
    graph = graph_with(REDUCE)
    first = order("7", body="one", sum=1, min=5, max=5, last="a", all="x", only="first")
    second = order("7", body="two", sum=2.5, min=3, max=7, last="b", all="y", only="second")
    outcome = process(graph, first, order("8"), second)
    assert outcome.ended == {DropReason.AGGREGATED: 3}
    assert flushed(graph, 9 * SECOND) == []
    found = flushed(graph, 11 * SECOND)
    assert [one["attributes"].get("reduce.records") for one in found] == [2, 1]
    assert found[0]["body"] == "one\ntwo"
    assert found[0]["attributes"] == {
        "order": "7", "sum": 3.5, "min": 3, "max": 7, "last": "b", "all": ["x", "y"],
        "only": "first", "reduce.records": 2,
    }  # fmt: skip
    assert flushed(graph, 99 * SECOND, everything=True) == []


def test_a_group_ends_with_a_condition_or_with_its_last_record() -> None:
    section = {**REDUCE, "ends_when": 'body == "end"', "max_records": 3}
    graph = graph_with(section)
    flushed(graph, 0)
    outcome = process(graph, order("7"), order("8"), order("7", body="end"), order("8"), order("8"))
    assert outcome.ended == {DropReason.AGGREGATED: 5}
    found = flushed(graph, SECOND)
    assert [one["body"] for one in found] == ["b\nend", "b\nb\nb"]
    assert [one["attributes"]["reduce.records"] for one in found] == [2, 3]
    assert flushed(graph, SECOND, everything=True) == []


def test_a_record_without_a_key_passes_and_a_late_one_begins_a_group() -> None:
    graph = graph_with(REDUCE)
    assert len(records_of(process(graph, log("no key")))) == 1
    flushed(graph, 0)
    process(graph, order("7"))
    process(graph, order("7"), now_ns=10 * SECOND)
    assert len(flushed(graph, 10 * SECOND)) == 1
    assert len(flushed(graph, 11 * SECOND, everything=True)) == 1


def test_groups_beyond_the_bounds_end_early() -> None:
    for bound in ({"max_groups": 2}, {"max_bytes": 64 * 1024}):
        graph = graph_with({**REDUCE, **bound})
        flushed(graph, 0)
        process(graph, *(order(str(n), body="x" * 30_000) for n in range(4)))
        assert len(flushed(graph, SECOND)) == 2
        assert graph.counts()["t"]["groups_ended_early"] == 2
        assert len(flushed(graph, 2 * SECOND, everything=True)) == 2


def test_values_that_cannot_be_merged_are_counted() -> None:
    graph = graph_with(REDUCE)
    process(
        graph, order("7", sum="x", all=1, body="x" * 20_000),
        order("7", sum=1, all="y", body="y" * 20_000),
    )  # fmt: skip
    (found,) = flushed(graph, SECOND, everything=True)
    assert found["attributes"]["sum"] == "x"
    assert found["attributes"]["all"] == 1
    assert found["body"] == "x" * 20_000
    assert graph.counts()["t"]["values_not_merged"] == 3


@pytest.mark.parametrize("values", [(2**63 - 1, 1), (-(2**63), -1), (1e308, 1e308)])
def test_a_sum_that_no_record_can_hold_is_counted_and_the_group_goes_on(
    values: tuple[float, float],
) -> None:
    graph = graph_with(REDUCE)
    process(graph, *(order("7", sum=value) for value in values))
    (found,) = flushed(graph, SECOND, everything=True)
    assert found["attributes"]["sum"] == values[0]
    assert found["attributes"]["reduce.records"] == 2
    assert graph.counts()["t"]["values_not_merged"] == 1


def test_a_list_is_for_attributes() -> None:
    with pytest.raises(ValidationError, match="merge: body: only attributes hold lists"):
        graph_with({**REDUCE, "merge": {"body": "list"}})


def test_a_group_of_two_services_is_of_its_first_record() -> None:
    """Read again after a kill, a record may be of another group: none goes on as its group."""
    other = orjson.dumps(orjson.loads(order("7", body="end")) | {"resource": {"service.name": "b"}})
    graph = graph_with({**REDUCE, "ends_when": 'body == "end"'})
    flushed(graph, 0)
    assert process(graph, order("7"), other, other).batches == {}
    found = flushed(graph, SECOND)
    assert [one["resource"]["service.name"] for one in found] == ["shop", "b"]
    given = {"transforms": {"t": {"inputs": ["app"], **REDUCE}}}
    assert route_fingerprint(config_of(given), graph_of(given)) != UNKNOWN


def test_groups_that_ended_wait_for_the_flush_within_their_bytes() -> None:
    graph = graph_with({**REDUCE, "ends_when": "true", "max_ended_bytes": 64 * 1024})
    flushed(graph, 0)
    process(graph, *(order(str(number), body="x" * 30_000) for number in range(2)))
    assert is_flush_due(graph) is False
    assert flushed(graph, 1) == []
    process(graph, order("3", body="x" * 30_000))
    assert is_flush_due(graph) is True
    assert len(flushed(graph, 2)) == 3
    assert is_flush_due(graph) is False


def test_a_group_holds_what_it_merged_within_its_bytes() -> None:
    graph = graph_with({**REDUCE, "max_bytes": 64 * 1024, "merge": {"attributes.all": "list"}})
    for _ in range(100):
        process(graph, order("7", all="x" * 1000))
    counts = graph.counts()["t"]
    assert counts["groups_ended_early"] >= 1


# Tail sampling.


def span(trace: str, begin_ms: int = 0, end_ms: int = 1, **more: Any) -> bytes:
    record = {
        "schema": "span/1.0", "kind": "span", "trace_id": trace, "span_id": "b7ad6b7169203331",
        "name": "n", "span_kind": "INTERNAL", "time_unix_nano": 1 + begin_ms * 1_000_000,
        "end_time_unix_nano": 1 + end_ms * 1_000_000, "status_code": "UNSET",
    }  # fmt: skip
    return orjson.dumps(record | more)


def trace_id(number: int) -> str:
    return f"{number + 1:032x}"


TAIL: dict[str, Any] = {
    "type": "tail_sample",
    "wait_s": 10,
    "rules": [{"where": 'status_code == "ERROR"'}, {"min_duration_ms": 500}],
}


def test_a_trace_is_kept_as_a_whole_for_one_of_its_spans() -> None:
    graph = graph_with(TAIL)
    outcome = process(
        graph,
        span(trace_id(0)), span(trace_id(1)), span(trace_id(0), status_code="ERROR"),
        span(trace_id(2), 0, 100), span(trace_id(2), 300, 501), log("no span"),
    )  # fmt: skip
    assert outcome.refused == []
    assert outcome.ended == {DropReason.AGGREGATED: 5}
    assert [record["kind"] for record in records_of(outcome)] == ["log"]
    assert flushed(graph, 9 * SECOND) == []
    kept = flushed(graph, 11 * SECOND)
    assert [one["trace_id"] for one in kept] == [trace_id(0)] * 2 + [trace_id(2)] * 2
    assert all("sample_weight" not in one for one in kept)
    counts = graph.counts()["t"]
    assert (counts["traces_kept"], counts["traces_dropped"]) == (2, 1)
    assert (counts["spans_kept"], counts["spans_dropped"]) == (4, 1)


def test_late_spans_follow_the_decision() -> None:
    graph = graph_with({**TAIL, "max_decisions": 2})
    process(graph, span(trace_id(0), status_code="ERROR"), span(trace_id(1)))
    flushed(graph, 0)
    assert len(flushed(graph, 11 * SECOND)) == 1
    outcome = process(graph, span(trace_id(0)), span(trace_id(1)), now_ns=12 * SECOND)
    assert outcome.ended == {DropReason.AGGREGATED: 1, DropReason.SAMPLED: 1}
    assert [one["trace_id"] for one in flushed(graph, 13 * SECOND)] == [trace_id(0)]
    assert graph.counts()["t"]["late_spans"] == 2
    process(graph, span(trace_id(2)), now_ns=12 * SECOND)  # its decision forgets the oldest
    flushed(graph, 23 * SECOND)
    outcome = process(graph, span(trace_id(0)), now_ns=24 * SECOND)
    assert outcome.ended == {DropReason.AGGREGATED: 1}


def test_the_rest_is_kept_by_its_ratio_and_says_how_many_it_stands_for() -> None:
    graph = graph_with({**TAIL, "ratio": 0.25})
    process(graph, *(span(trace_id(number)) for number in range(400)))
    kept = flushed(graph, 0, everything=True)
    assert 60 < len(kept) < 140
    assert {one["sample_weight"] for one in kept} == {4.0}
    process(graph, span(kept[0]["trace_id"]))
    assert [one["sample_weight"] for one in flushed(graph, 0, everything=True)] == [4.0]


def test_spans_of_decided_traces_wait_for_the_flush_within_their_bytes() -> None:
    graph = graph_with({**TAIL, "max_traces": 1, "max_decided_bytes": 64 * 1024})
    flushed(graph, 0)
    filler: dict[str, Any] = {"attributes": {"x": "x" * 30_000}}
    process(graph, *(span(trace_id(number), **filler) for number in range(3)))
    assert is_flush_due(graph) is False
    process(graph, span(trace_id(3), **filler))
    assert is_flush_due(graph) is True
    flushed(graph, 1)
    assert is_flush_due(graph) is False


def test_what_a_transform_holds_is_as_old_as_its_oldest_record() -> None:
    reduce, tail = graph_with({**REDUCE, "max_groups": 1}), graph_with(TAIL)
    for graph, line in ((reduce, order), (tail, lambda key: span(trace_id(int(key))))):
        flushed(graph, 0)
        assert graph.held_since_ns() == {}
        process(graph, line("1"), now_ns=1 * SECOND)
        process(graph, line("2"), now_ns=2 * SECOND)
        assert graph.held_since_ns() == {"t": 1 * SECOND}
        flushed(graph, 11 * SECOND)
        assert graph.held_since_ns() == {"t": 2 * SECOND}
        process(graph, line("1"), now_ns=11 * SECOND)  # a late span waits for the flush
        assert graph.held_since_ns() == {"t": 2 * SECOND}
        flushed(graph, 12 * SECOND)
        flushed(graph, 30 * SECOND)
        assert graph.held_since_ns() == {}


@pytest.mark.parametrize("bound", [{"max_traces": 2}, {"max_bytes": 64 * 1024}])
def test_traces_beyond_the_bounds_are_decided_early(bound: dict[str, int]) -> None:
    graph = graph_with({**TAIL, **bound, "ratio": 1})
    filler: dict[str, Any] = {"attributes": {"x": "x" * 30_000}}
    process(graph, *(span(trace_id(number), **filler) for number in range(5)))
    assert graph.counts()["t"]["traces_decided_early"] == 3
    assert len(flushed(graph, 0, everything=True)) == 5


def test_a_rule_may_keep_a_share() -> None:
    rules = [{"where": 'name == "n"', "min_duration_ms": 10, "ratio": 0}]
    graph = graph_with({**TAIL, "rules": rules, "ratio": 1})
    process(graph, span(trace_id(0), 0, 20), span(trace_id(1), 0, 5))
    assert [one["trace_id"] for one in flushed(graph, 0, everything=True)] == [trace_id(1)]


def test_a_sampler_behind_another_one_needs_its_own_seed() -> None:
    sample = {"type": "sample", "inputs": ["app"], "ratio": 0.5}
    tail = {**TAIL, "inputs": ["s"], "ratio": 0.5}
    with pytest.raises(WiringError, match="s before it keeps the same traces"):
        graph_of({"transforms": {"s": sample, "t": tail}})
    graph_of({"transforms": {"s": sample, "t": {**tail, "seed": "other"}}})
    graph_of({"transforms": {"s": sample, "t": {**tail, "ratio": 0}}})


def test_a_rule_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="set `where`, `min_duration_ms` or both"):
        graph_with({**TAIL, "rules": [{"ratio": 0.5}]})
