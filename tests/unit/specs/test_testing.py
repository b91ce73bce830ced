"""The library's own help for tests of applications."""

import logging
from typing import Annotated

import pytest

from penstock import specs
from penstock.specs import Sensitive
from penstock.specs.emit import process_sink
from penstock.specs.testing import Capture, capturing


class Bought(specs.Event, spec="testing_test.bought/1.0"):
    """A specialised spec of this test."""

    item: str
    count: int = 1
    card: Annotated[str | None, Sensitive("pci")] = None


class Sold(specs.Event, spec="testing_test.sold/1.0"):
    """Another one."""


def test_what_was_emitted_is_found_and_returned(specs_capture: Capture) -> None:
    Bought(item="mug", count=2, card="4111").emit()
    found = specs_capture.assert_emitted(Bought, item="mug")
    assert (found.count, found.card) == (2, "[redacted:pci]")
    specs_capture.assert_not_emitted(Bought, item="tray")
    specs_capture.assert_not_emitted(Sold)


def test_what_was_not_emitted_is_explained(specs_capture: Capture) -> None:
    with pytest.raises(
        AssertionError, match=r"no testing_test.bought/1\.0 was emitted; there were"
    ):
        specs_capture.assert_emitted(Bought)
    Bought(item="mug", count=2).emit()
    with pytest.raises(AssertionError, match="item: 'mug', not 'tray'"):
        specs_capture.assert_emitted(Bought, item="tray", count=2)
    with pytest.raises(AssertionError, match="was emitted"):
        specs_capture.assert_not_emitted(Bought, count=2)


def test_fields_that_do_not_exist_are_refused(specs_capture: Capture) -> None:
    with pytest.raises(AssertionError, match="declares no amount"):
        specs_capture.assert_emitted(Bought, amount=2)


def test_structlog_and_logging_are_captured_without_setup(specs_capture: Capture) -> None:
    specs.log("shop").debug("by structlog", a=1)
    logging.getLogger("shop").info("by logging")
    assert specs_capture.assert_logged("by structlog", a=1)["scope"] == "shop"
    specs_capture.assert_logged("by logging")
    with pytest.raises(AssertionError, match="by structlog"):
        specs_capture.assert_logged("by structlog", a=2)


def test_clear_forgets(specs_capture: Capture) -> None:
    specs.log().info("before")
    specs_capture.clear()
    assert specs_capture.records == []


def test_fields_that_nobody_declared_fail() -> None:
    with capturing() as capture:
        capture.emitter.emit_record(
            Bought(item="a").model_copy(update={"attributes": {"testing_test.cuont": 2}})
        )
        with pytest.raises(AssertionError, match=r"testing_test.bought/1.0: record: value_error"):
            capture.assert_well_formed()


def test_records_that_the_collector_would_refuse_fail() -> None:
    with capturing() as capture:
        capture.emitter.emit("log", b'{"schema":"log/1.0","kind":"log"}')
        capture.emitter.emit("log", b"x" * 300_000)
        with pytest.raises(AssertionError, match=r"missing_field.*\n.*too_large"):
            capture.assert_well_formed()


def test_unknown_fields_and_specs_fail() -> None:
    with capturing() as capture:
        Sold().emit()
        line = capture.lines()[0]
        capture.clear()
        capture.emitter.emit("event", line[:-1] + b',"colour":"red"}')
        capture.emitter.emit(
            "event", line.replace(b"testing_test.sold/1.0", b"testing_test.sodl/1.0")
        )
        with pytest.raises(AssertionError, match=r"1 fields.*\n.*is not known here"):
            capture.assert_well_formed()


def test_the_emitter_of_before_comes_back() -> None:
    before = process_sink.sink()
    with capturing("other") as capture:
        assert process_sink.sink() is capture.emitter
        specs.log().info("x")
    assert process_sink.sink() is before
