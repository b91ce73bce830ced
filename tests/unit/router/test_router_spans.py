"""What the router traces of its batches, and what it must not."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.router.job.query import BatchSpans
from penstock.service.tracing import OWN_SUBJECTS
from tests.support.tracing import attributes_of, context_of, ended, error_of, make_tracer
from tests.unit.router.sink_rows import context, row, table

OWN = {"subject": OWN_SUBJECTS[2], "stream": "traces"}
COLUMNS = ["stream", "subject"]


def test_a_batch_is_a_span_with_what_was_read_and_delivered(tmp_path: Path) -> None:
    tracer = make_tracer()
    spans = BatchSpans(replace(context(tmp_path), tracer=tracer), COLUMNS)
    rows = table([row(1), row(2, **OWN)])
    with spans.delivering(rows, 5_000_000) as given:
        assert given is rows
    found = {span.name: span for span in ended(tracer)}
    assert set(found) == {"micro-batch", "read", "deliver"}
    whole = found["micro-batch"]
    assert whole.start_time is not None
    assert whole.end_time is not None
    assert whole.end_time - whole.start_time >= 5_000_000
    parents = {span.parent.span_id if span.parent else 0 for span in found.values()}
    assert parents == {0, context_of(whole).span_id}
    assert attributes_of(whole)["messaging.batch.message_count"] == 2
    assert attributes_of(whole)["penstock.sink"] == "lake"


def test_a_batch_of_nothing_but_own_spans_makes_none(tmp_path: Path) -> None:
    tracer = make_tracer()
    spans = BatchSpans(replace(context(tmp_path), tracer=tracer), COLUMNS)
    for rows in (table([row(1, **OWN), row(2, **OWN)]), table([])):
        with spans.delivering(rows, 1):
            pass
    assert ended(tracer) == []


def test_a_sink_that_does_not_need_the_subject_does_not_get_it(tmp_path: Path) -> None:
    spans = BatchSpans(replace(context(tmp_path), tracer=make_tracer()), ["stream"])
    assert spans.columns == ["stream", "subject"]
    rows = table([row(1)]).select(spans.columns)
    with spans.delivering(rows, 1) as given:
        assert given.column_names == ["stream"]
    assert BatchSpans(context(tmp_path), ["stream"]).columns == ["stream"]


def test_a_delivery_that_fails_says_with_what(tmp_path: Path) -> None:
    tracer = make_tracer()
    spans = BatchSpans(replace(context(tmp_path), tracer=tracer), COLUMNS)
    with pytest.raises(ValueError, match="no"), spans.delivering(table([row(1)]), 1):
        raise ValueError("no")
    assert {(span.name, error_of(span)) for span in ended(tracer)} == {
        ("read", ""), ("deliver", "ValueError"), ("micro-batch", "ValueError"),
    }  # fmt: skip
