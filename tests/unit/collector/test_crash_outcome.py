"""Figures of the crash harness over several rounds."""

from collections import Counter

from tests.collector_crash.outcome import Outcome


def test_rounds_add_up() -> None:
    whole = Outcome()
    whole.add(Outcome(runs=2, judged=2, ready_s=3.0, fired=Counter(a=1), broken=["x"]))
    whole.add(Outcome(runs=3, judged=0, ready_s=1.0, fired=Counter(a=1, b=2)))
    assert whole == Outcome(runs=5, judged=2, ready_s=3.0, fired=Counter(a=2, b=2), broken=["x"])


def test_a_failpoint_that_never_fired_is_named_once_there_were_enough_runs() -> None:
    fired = Counter(a=1)
    assert Outcome(runs=11, fired=fired).silent(["a", "b"]) == []
    assert Outcome(runs=12, fired=fired).silent(["a", "b"]) == ["b"]
