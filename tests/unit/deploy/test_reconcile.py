"""The demo's verdict: each way in which stages can disagree is seen and named."""

from dataclasses import replace

import pytest

from penstock.deploy.up.demo.reconciliation import Account, Figures, Landed, Span, reconcile

GOOD = Figures(
    app_acked=60,
    app_landed=60,
    from_app=60,
    collector=Account(received=100, delivered=97, quarantined=2, dropped=1),
    log_before={"logs": Span(0, 10), "traces": Span(0, 0)},
    log_after={"logs": Span(0, 100), "traces": Span(0, 7)},
    landed={"logs": Landed(100, 100, 0, 99), "traces": Landed(7, 7, 0, 6)},
    problems_landed=5,
    problems_shown=5,
)


def _failures(figures: Figures) -> list[tuple[str, bool | None]]:
    return [(f.name, f.holds) for f in reconcile(figures) if f.holds is not True]


def test_a_run_whose_stages_agree_has_no_failure() -> None:
    assert _failures(GOOD) == []


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (replace(GOOD, app_acked=61), "app → collector"),
        (replace(GOOD, app_landed=59), "app → Parquet"),
        (replace(GOOD, app_landed=61), "app → Parquet"),
        (replace(GOOD, app_acked=None), "app → collector"),
        (replace(GOOD, collector=Account(received=100, delivered=97)), "collector"),
        (replace(GOOD, log_before={"logs": Span(0, 11)}), "collector → log"),
        (replace(GOOD, log_before={"logs": Span(0, 9)}), "collector → log"),
    ],
)
def test_each_stage_that_disagrees_is_named(wrong: Figures, name: str) -> None:
    assert (name, False) in _failures(wrong)


@pytest.mark.parametrize(
    ("landed", "words"),
    [
        (Landed(101, 100, 0, 99), "1 repeated"),
        (Landed(99, 99, 0, 99), "1 missing"),
        (Landed(99, 99, 0, 98), "0-99 expected, 0-98"),
        (Landed(99, 99, 1, 99), "0-99 expected, 1-99"),
        (Landed(101, 101, 0, 100), "0-99 expected, 0-100"),
        (Landed(), "0-99 expected"),
    ],
)
def test_parquet_must_hold_every_offset_once(landed: Landed, words: str) -> None:
    wrong = replace(GOOD, landed={**GOOD.landed, "logs": landed})
    (failure,) = [finding for finding in reconcile(wrong) if not finding.holds]
    assert failure.name == "log → Parquet, logs"
    assert words in failure.statement


def test_a_stream_without_records_needs_no_rows() -> None:
    empty = replace(
        GOOD,
        collector=Account(received=90, delivered=90),
        log_after={"logs": Span(0, 100), "audit": Span(0, 0)},
    )
    assert _failures(empty) == []


def test_rows_of_records_the_log_no_longer_keeps_are_no_failure() -> None:
    retained = replace(GOOD, log_after={"logs": Span(50, 100), "traces": Span(0, 7)})
    assert _failures(retained) == []


def test_a_restarted_part_makes_its_comparisons_impossible_not_wrong() -> None:
    restarted = replace(GOOD, restarted=frozenset({"collector"}), from_app=9)
    assert _failures(restarted) == [("app → collector", None), ("collector → log", None)]
    assert _failures(replace(restarted, app_landed=59)) == [
        ("app → collector", None),
        ("collector → log", None),
        ("app → Parquet", False),
    ]


def test_an_app_that_was_stopped_before_it_sent_anything_is_no_failure() -> None:
    assert _failures(replace(GOOD, app_acked=None, app_landed=0, from_app=0)) == []


def test_a_log_whose_end_is_unknown_is_a_failure_even_after_restarts() -> None:
    unread = replace(GOOD, log_after={}, restarted=frozenset({"collector"}))
    assert ("collector → log", False) in _failures(unread)


def test_records_recovered_from_an_earlier_run_may_already_be_in_the_log() -> None:
    account = Account(recovered=5, received=100, delivered=102, quarantined=3)
    assert _failures(replace(GOOD, collector=account)) == []


def test_others_may_add_to_a_shared_log_but_nothing_may_be_missing() -> None:
    shared = replace(GOOD, shared_log=True)
    assert _failures(replace(shared, log_before={"logs": Span(0, 9)})) == []
    assert _failures(replace(shared, log_before={"logs": Span(0, 11)})) == [
        ("collector → log", False)
    ]


def test_problem_that_the_console_did_not_show_is_wrong() -> None:
    assert _failures(replace(GOOD, problems_shown=4)) == [("log → console, problems", False)]
