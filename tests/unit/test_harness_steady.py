"""The judge of memory and logs finds what it is there to find."""

import json
from datetime import UTC, datetime

import pytest

from tests.harness.checkers.steady import (
    Complaints,
    FaultSpan,
    Sample,
    growth,
    read_complaints,
)
from tests.harness.plan import SECOND_NS

MIB = 2**20
AT_S = 1_800_000_000


def samples(minutes: int, mib_per_hour: float) -> list[Sample]:
    """Every ten seconds, with a wobble; in the warm-up it grows by much."""
    found = []
    for n in range(minutes * 6):
        warm = min(n / 18, 1.0) * 300
        wobble = 3 if n % 2 else 0
        size = (50 + warm + wobble + mib_per_hour * n / 360) * MIB
        found.append(Sample(n * 10 * SECOND_NS, round(size)))
    return found


@pytest.mark.parametrize(("slope", "flat"), [(0, True), (20, True), (180, False), (-50, True)])
def test_growth_after_the_warm_up_counts(slope: float, flat: bool) -> None:
    found = growth("collector", 1, samples(20, slope))
    assert found.mib_per_hour == pytest.approx(slope, abs=5)
    assert found.is_flat is flat


def test_a_java_process_fills_its_heap_and_no_more() -> None:
    assert growth("router java", 1, samples(20, 800)).is_flat
    assert not growth("router java", 1, samples(20, 2000)).is_flat


def test_what_lives_in_a_heap_must_not_grow() -> None:
    assert growth("router java heap", 1, samples(20, 100)).is_flat
    leaking = growth("router java heap", 1, samples(20, 400))
    assert not leaking.is_flat
    assert list(leaking.curve_mib) == sorted(leaking.curve_mib)
    assert len(leaking.curve_mib) == 20


def test_a_process_that_lived_too_short_is_not_judged() -> None:
    found = growth("logd", 1, samples(6, 5000))
    assert found.mib_per_hour is None
    assert found.is_flat


def line(after_s: float, level: str = "error") -> str:
    at = datetime.fromtimestamp(AT_S + after_s, UTC).isoformat()
    return json.dumps({"event": "it failed", "level": level, "timestamp": at})


def complaints(*lines: str) -> Complaints:
    begin = AT_S * SECOND_NS
    found = Complaints()
    fault = FaultSpan("nats", "killed", begin, begin + 5 * SECOND_NS)
    read_complaints("logd-1", lines, [fault], found)
    return found


def test_an_error_is_explained_by_a_fault_at_that_time_only() -> None:
    found = complaints(line(1), line(60), line(-1), line(70))
    assert found.explained == {"logd-1: it failed": 2}
    assert len(found.unexplained) == 2


def test_what_is_no_error_is_not_counted() -> None:
    found = complaints(line(-1, "warning"), line(-1, "info"), "plain words", "[1]")
    assert found == Complaints()


def test_a_traceback_has_no_time_and_is_never_explained() -> None:
    assert len(complaints("Traceback (most recent call last):").unexplained) == 1
