"""A metric's dimension has no more values than it declares."""

import gc
import logging
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from penstock.specs import Dimension, Emitter, MetricPoint
from penstock.specs.emit.emitter import OVERFLOW, Cardinality
from penstock.specs.emit.process_emitter import use_emitter
from penstock.specs.models.codec import to_wire
from tests.unit.specs.output import Output

GAUGE: dict[str, Any] = {"unit": "1", "metric_type": "gauge", "value": 1}


class Visits(MetricPoint, spec="cardinality_test.visits/1.0"):
    """With one dimension of each type."""

    route: Annotated[str, Dimension(max_cardinality=3)]
    tags: Annotated[list[str] | None, Dimension(max_cardinality=2)] = None
    shard: Annotated[int | None, Dimension(max_cardinality=2)] = None


class Strict(MetricPoint, spec="cardinality_test.strict/1.0"):
    """With a dimension that can neither say the overflow nor be left out."""

    code: Annotated[str, Field(pattern="^[0-9]{3}$"), Dimension(max_cardinality=1)]


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path / "lines")
    before = use_emitter(made.emitter)
    yield made
    use_emitter(before)
    made.close()


def emitted(output: Output, key: str) -> list[Any]:
    found = [record.get("attributes", {}) for record in output.records()]
    return [attributes.get(f"cardinality_test.{key}") for attributes in found]


def test_values_beyond_the_cap_go_out_as_one_and_are_counted(
    output: Output, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.specs"):
        for route in ("a", "b", "c", "d", "e", "a", "d"):
            assert Visits(route=route, **GAUGE).emit()
    assert emitted(output, "route") == ["a", "b", "c", OVERFLOW, OVERFLOW, "a", OVERFLOW]
    assert output.emitter.counters().folded == {"cardinality_test.route": 3}
    assert [m for m in caplog.messages if "more than 3 values" in m] == caplog.messages
    assert len(caplog.messages) == 1


def test_what_cannot_say_so_is_left_out_where_it_may_be(output: Output) -> None:
    for number in (1, 2, 3, 1):
        Visits(route="a", shard=number, tags=[str(number)], **GAUGE).emit()
    assert emitted(output, "shard") == [1, 2, None, 1]
    assert emitted(output, "tags") == [["1"], ["2"], [OVERFLOW], ["1"]]


def test_a_point_that_can_do_neither_is_dropped_and_counted(output: Output) -> None:
    assert Strict(code="200", **GAUGE).emit()
    assert not Strict(code="404", **GAUGE).emit()
    assert emitted(output, "code") == ["200"]
    assert output.emitter.counters().dropped == {"metric": {"dimension_overflow": 1}}


def test_another_emitter_begins_anew(output: Output, tmp_path: Path) -> None:
    for route in "abcd":
        Visits(route=route, **GAUGE).emit()
    other = Output(tmp_path / "other")
    use_emitter(other.emitter)
    Visits(route="d", **GAUGE).emit()
    assert emitted(other, "route") == ["d"]
    other.close()


def test_threads_do_not_get_beyond_the_cap() -> None:
    cardinality, meeting = Cardinality(), threading.Barrier(8)
    said: list[str] = []

    def work(me: int) -> None:
        meeting.wait(10)
        for number in range(200):
            fields = to_wire(Visits(route=f"{me}-{number}", **GAUGE))
            cardinality.fold(Visits, fields)
            said.append(fields["attributes"]["cardinality_test.route"])

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(said) - {OVERFLOW}) <= 3
    assert OVERFLOW in said


def test_memory_does_not_grow_with_the_values() -> None:
    """Neither with how many there are, nor with how long they are."""
    cardinality = Cardinality()

    def held_after(count: int) -> int:
        for number in range(count):
            cardinality.fold(Visits, to_wire(Visits(route=f"{number}" + "x" * 20_000, **GAUGE)))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = held_after(10)  # and the warning that the cap is met
        held = held_after(200)
    finally:
        tracemalloc.stop()
    assert held - before < 200_000, "a twentieth of the values' length"


def test_a_record_that_is_emitted_without_the_process_is_capped_too(output: Output) -> None:
    emitter: Emitter = output.emitter
    for route in "abcd":
        emitter.emit_record(Visits(route=route, **GAUGE))
    assert emitted(output, "route") == ["a", "b", "c", OVERFLOW]
