"""What leaves the process has passed redaction, and has done so once."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from typing_extensions import override

from penstock import specs
from penstock.specs.emit.process_emitter import use_emitter
from penstock.specs.otel.exporter import PenstockSpanExporter
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.testing import StubLink

NAMES = ("own.password", "bound.password", "order_id")


class CountingScrubber(Scrubber):
    """Counts how often each attribute is looked at."""

    def __init__(self, *, values: bool) -> None:
        super().__init__(keyless="keep", values=values)
        self.seen: Counter[str] = Counter()

    @override
    def scrub(self, fields: dict[str, Any]) -> dict[str, Any]:
        self.seen.update(fields.get("attributes", {}).keys())
        return super().scrub(fields)

    @override
    def scrub_names(
        self, attributes: Mapping[str, Any], time_unix_nano: int = 0
    ) -> Mapping[str, Any]:
        self.seen.update(attributes.keys())
        return super().scrub_names(attributes, time_unix_nano)


class Deal(specs.Event, spec="redacted_once.deal/1.0"):
    """An event of this test."""


def log(emitter: specs.Emitter) -> None:
    emitter.logs.write("deal", 9, {"own.password": "hunter2", "order_id": "o-1"})


def event(emitter: specs.Emitter) -> None:
    Deal(attributes={"own.password": "hunter2", "order_id": "o-1"}).emit()


def span(emitter: specs.Emitter) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(emitter)))
    attributes = {"own.password": "hunter2", "order_id": "o-1", "bound.password": "hunter2"}
    provider.get_tracer("t").start_span("deal", attributes=attributes).end()


@pytest.mark.parametrize("values", [False, True], ids=["names", "values"])
@pytest.mark.parametrize("make", [log, event, span])
def test_a_record_passes_redaction_once(
    make: Callable[[specs.Emitter], None], *, values: bool
) -> None:
    lines: list[bytes] = []
    scrubber = CountingScrubber(values=values)
    emitter = specs.Emitter(
        {"service.name": "shop"},
        link=lambda _, resource_json: StubLink(resource_json, lines),
        scrubber=scrubber,
    )
    before = use_emitter(emitter)
    try:
        with specs.bind(**{"bound.password": "hunter2"}):
            make(emitter)
        assert emitter.flush(10)
    finally:
        use_emitter(before)
        emitter.close()
    (record,) = map(json.loads, lines)
    assert "hunter2" not in str(record)
    assert record["attributes"]["order_id"] == "o-1"
    assert {name: scrubber.seen[name] for name in NAMES} == dict.fromkeys(NAMES, 1)
