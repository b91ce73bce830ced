"""What the router traces of its batches, and what it must not."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.router.job.route_task import holds_others
from penstock.router.streaming.batches import BatchSpans
from penstock.service.tracing import OWN_SUBJECTS
from tests.support.tracing import attributes_of, context_of, ended, error_of, make_tracer
from tests.unit.router.sink_rows import context, row, table

OWN = {"subject": OWN_SUBJECTS[2], "stream": "traces"}
COLUMNS = ["stream", "subject"]


def test_a_batch_is_a_span_with_what_was_read_and_delivered(tmp_path: Path) -> None:
    tracer = make_tracer()
    spans = BatchSpans(replace(context(tmp_path), tracer=tracer), COLUMNS)
    with spans.delivering(2, 5_000_000):
        pass
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
    own = spans.own_subjects
    assert own is not None
    assert holds_others(table([row(1), row(2, **OWN)]), own)
    for rows in (table([row(1, **OWN), row(2, **OWN)]), table([])):
        assert not holds_others(rows, own)
    with spans.delivering(0, 1):
        pass
    assert ended(tracer) == []


def test_a_job_that_traces_reads_the_subject_for_every_sink(tmp_path: Path) -> None:
    spans = BatchSpans(replace(context(tmp_path), tracer=make_tracer()), ["stream"])
    assert spans.columns == ["stream", "subject"]
    without = BatchSpans(context(tmp_path), ["stream"])
    assert (without.columns, without.own_subjects) == (["stream"], None)


def test_a_delivery_that_fails_says_with_what(tmp_path: Path) -> None:
    tracer = make_tracer()
    spans = BatchSpans(replace(context(tmp_path), tracer=tracer), COLUMNS)
    with pytest.raises(ValueError, match="no"), spans.delivering(1, 1):
        raise ValueError("no")
    assert {(span.name, error_of(span)) for span in ended(tracer)} == {
        ("read", ""), ("deliver", "ValueError"), ("micro-batch", "ValueError"),
    }  # fmt: skip
