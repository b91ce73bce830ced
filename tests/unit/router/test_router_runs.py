"""Rows with the same values, found where they stand."""

import pyarrow as pa
import pytest

from penstock.router.runs import runs


@pytest.mark.parametrize("places", [1, 2, 12, 300, 5000])
def test_runs_are_in_the_order_of_the_rows(places: int) -> None:
    """Of a dozen places hashes collide now and then, of hundreds for sure."""
    wanted = [(f"service-{places}-{number}", number % 3 + 1) for number in range(places)]
    names = [name for name, count in wanted for _ in range(count)]
    rows = pa.table({"service": names, "other": range(len(names))})
    found = runs(rows, ["service"])
    assert [(values["service"], count) for values, _, count in found] == wanted
    assert all(names[begin] == values["service"] for values, begin, _ in found)


def test_null_is_a_value_and_no_rows_have_none() -> None:
    rows = pa.table({"service": pa.array([None, None, "shop"], pa.string())})
    assert runs(rows, ["service"]) == [({"service": None}, 0, 2), ({"service": "shop"}, 2, 1)]
    assert runs(rows.slice(0, 0), ["service"]) == []
