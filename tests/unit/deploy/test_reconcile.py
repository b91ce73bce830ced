"""The demo's verdict: each way in which stages can disagree is seen and named."""

from dataclasses import replace

import pytest

from penstock.deploy.account.figures import CollectorFigures
from penstock.deploy.account.rows import State
from penstock.deploy.up.demo.reconciliation import Figures, Landed, Span, reconcile

OFF, UNKNOWN = State.OFF, State.UNKNOWN


def account(
    *, recovered: int = 0, received: int = 0, delivered: int = 0, ended: int = 0
) -> CollectorFigures:
    """A collector's account; what `ended` was quarantined."""
    came = {"recovered": recovered, "received": received}
    went = {"delivered": delivered, "quarantined": ended}
    difference = abs(sum(came.values()) - sum(went.values()))
    return CollectorFigures(came, went, difference, received)


GOOD = Figures(
    app_acked=60,
    app_landed=60,
    from_app=60,
    collector=account(received=100, delivered=97, ended=3),
    log_before={"logs": Span(0, 10), "traces": Span(0, 0)},
    log_after={"logs": Span(0, 100), "traces": Span(0, 7)},
    landed={"logs": Landed(100, 100, 0, 99), "traces": Landed(7, 7, 0, 6)},
    problems_landed=5,
    problems_shown=5,
)


def _failures(figures: Figures) -> list[tuple[str, State]]:
    rows = reconcile(figures)
    return [(row.name, row.state) for row in rows if row.state is not State.BALANCED]


def test_a_run_whose_stages_agree_has_no_failure() -> None:
    assert _failures(GOOD) == []


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (replace(GOOD, app_acked=61), "app → collector"),
        (replace(GOOD, app_landed=59), "app → Parquet"),
        (replace(GOOD, app_landed=61), "app → Parquet"),
        (replace(GOOD, app_acked=None), "app → collector"),
        (replace(GOOD, collector=account(received=100, delivered=97)), "collector"),
        (replace(GOOD, log_before={"logs": Span(0, 11)}), "collectors → log collector"),
        (replace(GOOD, log_before={"logs": Span(0, 9)}), "collectors → log collector"),
    ],
)
def test_each_stage_that_disagrees_is_named(wrong: Figures, name: str) -> None:
    assert (name, OFF) in _failures(wrong)


@pytest.mark.parametrize(
    ("landed", "words"),
    [
        (Landed(101, 100, 0, 99), "1 repeated"),
        (Landed(99, 99, 0, 99), "1 missing"),
        (Landed(99, 99, 0, 98), "0-99 expected, 0-98 found"),
        (Landed(99, 99, 1, 99), "0-99 expected, 1-99"),
        (Landed(101, 101, 0, 100), "0-99 expected, 0-100"),
        (Landed(), "0-99 expected"),
    ],
)
def test_parquet_must_hold_every_offset_once(landed: Landed, words: str) -> None:
    wrong = replace(GOOD, landed={**GOOD.landed, "logs": landed})
    (failure,) = [finding for finding in reconcile(wrong) if finding.state is OFF]
    assert failure.name == "log → Parquet logs"
    assert words in failure.statement


def test_a_stream_without_records_needs_no_rows() -> None:
    empty = replace(
        GOOD,
        collector=account(received=90, delivered=90),
        log_after={"logs": Span(0, 100), "audit": Span(0, 0)},
    )
    assert _failures(empty) == []


def test_rows_of_records_the_log_no_longer_keeps_are_no_failure() -> None:
    retained = replace(GOOD, log_after={"logs": Span(50, 100), "traces": Span(0, 7)})
    assert _failures(retained) == []


def test_a_restarted_part_makes_its_comparisons_impossible_not_wrong() -> None:
    restarted = replace(GOOD, restarted=frozenset({"collector"}), from_app=9)
    assert _failures(restarted) == [("app → collector", UNKNOWN), ("collectors → log", UNKNOWN)]
    assert _failures(replace(restarted, app_landed=59)) == [
        ("app → collector", UNKNOWN),
        ("collectors → log", UNKNOWN),
        ("app → Parquet", OFF),
    ]


def test_an_app_that_was_stopped_before_it_sent_anything_is_no_failure() -> None:
    assert _failures(replace(GOOD, app_acked=None, app_landed=0, from_app=0)) == []


def test_a_log_whose_end_is_unknown_is_a_failure_even_after_restarts() -> None:
    unread = replace(GOOD, log_after={}, restarted=frozenset({"collector"}))
    assert ("collectors → log", OFF) in _failures(unread)


def test_records_recovered_from_an_earlier_run_may_already_be_in_the_log() -> None:
    more = account(recovered=5, received=100, delivered=102, ended=3)
    assert _failures(replace(GOOD, collector=more)) == []


def test_others_may_add_to_a_shared_log_but_nothing_may_be_missing() -> None:
    shared = replace(GOOD, shared_log=True)
    assert _failures(replace(shared, log_before={"logs": Span(0, 9)})) == []
    assert _failures(replace(shared, log_before={"logs": Span(0, 11)})) == [
        ("collectors → log collector", OFF)
    ]


def test_problem_that_the_console_did_not_show_is_wrong() -> None:
    assert _failures(replace(GOOD, problems_shown=4)) == [("log → console problems", OFF)]
