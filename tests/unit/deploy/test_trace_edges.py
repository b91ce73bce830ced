"""A trace asks collectors for records that never reached the log."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.collector.drops.query import RecordQuery
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.edges import ask_collectors, questions_of, service_of
from penstock.deploy.trace.parts import PartsClient
from penstock.deploy.trace.question import TraceQuestion
from penstock.deploy.trace.report import edge_text
from tests.support.console import FakePart, a_status

SINCE = datetime(2026, 1, 31, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("service = 'shop'", {"service": "shop"}),
        (
            "body LIKE '%not paid (yet)%' and Service='shop'",
            {"service": "shop", "text": "not paid (yet)"},
        ),
        ("kind = 'log' and body like '%x%'", {"text": "x"}),
        ("severity_number >= 17", None),
        ("service = 'shop' or body like '%x%'", None),
        ("not service = 'shop'", None),
        ("body like 'x%'", None),
        ("body like '%a_b%'", None),
    ],
)
def test_of_a_condition_a_collector_is_asked_for_what_it_can_know(
    where: str, asked: dict[str, Any] | None
) -> None:
    question = TraceQuestion(where=where, limit=5)
    assert questions_of(question) == ([] if asked is None else [{**asked, "limit": 5}])
    assert service_of(question) == (asked or {}).get("service", "")


def test_one_question_has_many_ids_and_a_time_bounds_it() -> None:
    from_ns = int(SINCE.timestamp()) * 10**9
    assert questions_of(
        TraceQuestion(trace_ids=("t1", "t2"), record_ids=("r1",), start=SINCE, limit=2)
    ) == [
        {"trace_ids": ["t1", "t2"], "from_ns": from_ns, "limit": 4},
        {"record_ids": ["r1"], "from_ns": from_ns, "limit": 2},
    ]


def test_more_ids_than_a_request_may_have_are_several_questions() -> None:
    ids = tuple(f"{number:064x}" for number in range(2500))
    asked = questions_of(TraceQuestion(record_ids=ids))
    assert [it for one in asked for it in one["record_ids"]] == [*ids]
    assert all(len(json.dumps(one)) < 64 * 1024 for one in asked)
    assert all(RecordQuery.read(one).record_ids == {*one["record_ids"]} for one in asked)


def facts(**more: Any) -> dict[str, Any]:
    ids = {"trace_id": "", "record_id": ""}
    return {"time_unix_nano": 10**18, "source": "app", "service": "shop", **ids, **more}


def collector(answer: Mapping[str, Any] | None) -> FakePart:
    part = FakePart(lambda: a_status("collector", "c"))
    if answer is not None:
        part.answers[""] = (200, dict(answer))
    return part


def test_what_never_reached_the_log_is_told_and_who_did_not_answer() -> None:
    answer = {
        "drops": [facts(reason="filtered", step="quiet", text="card declined")],
        "missed": [{"records": 7}],
        "quarantine": [facts(reason="missing_field: body", replayed=False)],
    }
    parts = {"edge-1": collector(answer), "edge-2": collector(None)}
    config = ConsoleConfig(parts={name: part.url for name, part in parts.items()})
    asking = ask_collectors(
        PartsClient(config), {name: {} for name in parts}, [{"service": "shop"}]
    )
    edges, silent = asyncio.run(asking)
    for part in parts.values():
        part.close()
    about = "not in the log: 2001-09-09T01:46:40.000Z, edge-1, source app, shop"
    assert [*map(edge_text, edges)] == [
        f"{about}: filtered by quiet: card declined",
        f"{about}: in quarantine: missing_field: body",
        "edge-1 dropped 7 more in that time and has no record of them",
    ]
    there = edge_text(edges[0] | {"in_log": True})
    assert there.startswith("a record with its record id is in the log: 2001-09-09T")
    assert [*silent] == ["edge-2"]
    path, _, document = parts["edge-1"].posted[0]
    assert (path, document) == ("/records", {"service": "shop"})


def test_a_full_answer_is_asked_for_again_by_halves() -> None:
    """Each id has two drops, and an answer at most three: only single ids are answered whole."""

    def answered(asked: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        found = [facts(reason="filtered", step=f"{one} {nth}", text="")
                 for one in asked["record_ids"] for nth in "ab"]  # fmt: skip
        drops = found[-asked["limit"] :]
        return 200, {"drops": drops, "missed": [{"records": 7}], "quarantine": []}

    part = FakePart(lambda: a_status("collector", "c"))
    part.answers[""] = answered
    question = {"record_ids": ["r1", "r2", "r3"], "limit": 3}
    config = ConsoleConfig(parts={"edge": part.url})
    edges, silent = asyncio.run(ask_collectors(PartsClient(config), {"edge": {}}, [question] * 2))
    part.close()
    assert silent == {}
    steps = [it["step"] for it in edges if it["fate"] == "dropped"]
    assert steps == [f"r{number} {nth}" for number in (1, 2, 3) for nth in "ab"]
    assert [it["records"] for it in edges if it["fate"] == "unrecorded"] == [7]
