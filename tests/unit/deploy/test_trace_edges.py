"""A trace asks collectors for records that never reached the log."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.edges import ask_collectors, questions_of
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
    found = questions_of(TraceQuestion(where=where, limit=5))
    assert found == ([] if asked is None else [{**asked, "limit": 5}])


def test_each_id_is_a_question_and_a_time_bounds_it() -> None:
    from_ns = int(SINCE.timestamp()) * 10**9
    assert questions_of(
        TraceQuestion(trace_ids=("t1",), record_ids=("r1",), start=SINCE, limit=2)
    ) == [
        {"trace_id": "t1", "from_ns": from_ns, "limit": 2},
        {"record_id": "r1", "from_ns": from_ns, "limit": 2},
    ]


def facts(**more: Any) -> dict[str, Any]:
    return {"time_unix_nano": 10**18, "source": "app", "service": "shop", **more}


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
    assert [*silent] == ["edge-2"]
    path, _, document = parts["edge-1"].posted[0]
    assert (path, document) == ("/records", {"service": "shop"})
