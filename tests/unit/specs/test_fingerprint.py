"""One fault, one fingerprint, wherever it is told."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock import specs
from penstock.specs.testing import Capture


@contextmanager
def told(name: str) -> Iterator[None]:
    """What the block raises is logged, and goes on."""
    try:
        yield
    except Exception:
        specs.log().exception(name)
        raise


def test_an_exception_has_one_fingerprint_on_all_its_log_records(
    specs_capture: Capture,
) -> None:
    def fault() -> None:
        raise TimeoutError("no answer")

    def tells_of_it() -> None:
        try:
            fault()
        except TimeoutError:
            specs.log().exception("told within")
            raise

    def handles() -> None:
        with told("inner"):
            tells_of_it()

    with pytest.raises(TimeoutError) as caught, told("outer"):
        handles()
    specs.log().error("told at the end", exc_info=caught.value)
    found = {
        record["body"]: record["attributes"]["exception.fingerprint"]
        for record in specs_capture.records
    }
    assert list(found) == ["told within", "inner", "outer", "told at the end"]
    assert len(set(found.values())) == 1


def test_an_exception_that_is_raised_elsewhere_again_is_another_fault(
    specs_capture: Capture,
) -> None:
    constant = TimeoutError("no answer")

    def one() -> None:
        raise constant.with_traceback(None)

    def other() -> None:
        raise constant.with_traceback(None)

    for fault in (one, one, other):
        with pytest.raises(TimeoutError), told(fault.__name__):
            fault()
    marks = [r["attributes"]["exception.fingerprint"] for r in specs_capture.records]
    assert [mark == marks[0] for mark in marks] == [True, True, False]


def test_an_exception_that_one_helper_raises_for_many_is_another_fault_for_each(
    specs_capture: Capture,
) -> None:
    constant = TimeoutError("no answer")

    def helper() -> None:
        raise constant.with_traceback(None)

    def one() -> None:
        helper()

    def other() -> None:
        helper()

    for fault in (one, one, other):
        with pytest.raises(TimeoutError), told("outer"), told(fault.__name__):
            fault()
    marks = [r["attributes"]["exception.fingerprint"] for r in specs_capture.records]
    assert [mark == marks[0] for mark in marks] == [True] * 4 + [False] * 2
    assert marks[4] == marks[5]
