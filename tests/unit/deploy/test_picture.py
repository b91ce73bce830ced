"""The document that the console's page shows."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.deploy.console.rates import SECOND_NS, Rates
from penstock.deploy.console.snapshot import (
    PartSnapshot,
    describe_collectors,
    describe_parts,
    describe_pipeline,
    describe_routers,
    note_rates,
)
from tests.support.console import a_stage, a_status

KEYS = (
    "name", "stages", "info", "detail", "received", "lag", "reasons", "sinks", "log", "component",
    "x",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "stages",
                    "info",
                    "detail",
                    "received",
                    "lag",
                    "reasons",
                    "sinks",
                    "log",
                    "component",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


def seen(component: str, *stages: dict[str, Any], **more: Any) -> PartSnapshot:
    name = more.pop("part", component)
    return PartSnapshot(name, a_status(component, name, *stages, **more), "", 0)


def observed(*times: list[PartSnapshot]) -> Rates:
    rates = Rates(10 * SECOND_NS)
    for second, parts in enumerate(times):
        for part in parts:
            note_rates(part, rates, second * SECOND_NS)
    return rates


def test_the_picture_follows_the_data_path_and_counts_each_record_once() -> None:
    def parts(n: int) -> list[PartSnapshot]:
        return [
            seen(
                "router", a_stage("sink/lake", 30 * n, lag=7), a_stage("sink/loki", 20 * n, lag=9)
            ),
            seen("logd", a_stage("stream/logs", 10 * n), part="logd-1"),
            seen("logd", a_stage("stream/audit", 20 * n, lag=2, errors=1), part="logd-2"),
            seen("collector", a_stage("source/unix", 30 * n), a_stage("spool", 99 * n)),
        ]

    rates = observed(parts(0), parts(1))
    picture = describe_pipeline(parts(1), rates, SECOND_NS)
    figures = {node["id"]: node for node in picture["nodes"]}
    assert list(figures) == ["collector", "logd", "router"]
    assert figures["collector"]["in_rate"] == 30.0
    assert (figures["logd"]["in_rate"], figures["logd"]["lag"], figures["logd"]["errors"]) == (
        30.0,
        2,
        1,
    )
    assert (figures["router"]["in_rate"], figures["router"]["out_rate"]) == (30.0, 50.0)
    assert figures["router"]["lag"] == 9, "sinks read the same records"
    assert [sink["name"] for sink in picture["sinks"]] == ["lake", "loki"]


def test_the_worst_of_several_is_shown_and_what_does_not_answer_has_no_rate() -> None:
    away = PartSnapshot(
        "logd-2", a_status("logd", "logd-2", a_stage("stream/x", 5)), "nothing listens", 9
    )
    parts = [seen("logd", a_stage("stream/logs", 1), part="logd-1"), away]
    rates = observed(parts, parts)
    (node,) = describe_pipeline(parts, rates, SECOND_NS)["nodes"]
    assert (node["health"], node["parts"], node["away"]) == ("unreachable", 2, 1)
    first, second = describe_parts(parts, rates, SECOND_NS)
    assert (first["health"], second["health"]) == ("ready", "unreachable")
    assert second["reasons"] == ["nothing listens"]
    assert second["in_rate"] is None


def test_a_part_that_never_answered_is_what_its_name_says() -> None:
    assert PartSnapshot("collector-2", None, "no answer").component == "collector"
    assert (
        describe_pipeline([PartSnapshot("router", None, "x")], Rates(1), 0)["nodes"][0]["id"]
        == "router"
    )


def test_reasons_are_bounded_and_the_rest_counted() -> None:
    (part,) = describe_parts([seen("logd", reasons=["r"] * 50)], Rates(1), 0)
    assert (len(part["reasons"]), part["reasons_more"]) == (20, 30)


def test_a_collectors_accounts_add_up_over_its_sources() -> None:
    account = {"received": 10, "delivered": 7, "dropped": {"full": 2}, "held": 1, "difference": 0}
    info = {
        "reconciliation": {"unix": account, "file": account},
        "spool": {"bytes": 5, "max_bytes": 10},
    }
    (found,) = describe_collectors([seen("collector", info=info)], Rates(1), 0)
    account = found["account"]
    assert {name: n for name, n in account["came"].items() if n} == {"received": 20}
    went = {name: n for name, n in account["went"].items() if n}
    assert went == {"delivered": 14, "dropped (full)": 4, "held": 2}
    assert (account["difference"], account["state"]) == (0, "balanced")
    assert found["spools"] == [{"name": "spool", "bytes": 5, "max_bytes": 10}]


def test_what_accounts_cannot_explain_is_shown_whichever_way_it_is_off() -> None:
    info = {"reconciliation": {"unix": {"difference": -3}, "file": {"difference": 3}}}
    (found,) = describe_collectors([seen("collector", info=info)], Rates(1), 0)
    assert (found["account"]["difference"], found["account"]["state"]) == (6, "off")


def test_a_job_says_of_each_sink_how_far_it_is_behind_by_stream() -> None:
    info = {
        "log": {"logs": 100, "audit": 5},
        "sinks": {"lake": {"committed": {"logs": 60}, "restarts": 2, "problem": "HTTP 503"}},
    }
    stage = a_stage("sink/lake", 60, detail={"dead_letters": 3})
    (job,) = describe_routers([seen("router", stage, info=info)], Rates(1), 0)
    (sink,) = job["sinks"]
    assert sink["behind"] == {"logs": 40, "audit": 5}
    assert (sink["problem"], sink["restarts"], sink["dead_letters"]) == ("HTTP 503", 2, 3)


@given(st.dictionaries(st.sampled_from(("component", "stages", "info", "reasons", "health")), JSON))
def test_nothing_that_a_part_says_keeps_the_others_from_being_shown(status: dict[str, Any]) -> None:
    for component in ("collector", "router", "logd"):
        odd = PartSnapshot("odd", {"component": component} | status, "", 0)
        parts, rates = [odd, seen("logd")], Rates(SECOND_NS)
        note_rates(odd, rates, 0)
        assert len(describe_parts(parts, rates, 0)) == 2
        describe_pipeline(parts, rates, 0)
        describe_collectors(parts, rates, 0)
        describe_routers(parts, rates, 0)
