"""Odd records, some of them well-formed all the same: no sink loses their body silently."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import sink_kind
from tests.support.sink_batches import batch, context, log_record, span_record
from tests.unit.router.test_router_conversion import shaped

BODY = "the-body-itself"
LOG, SPAN = log_record(0, body=BODY), span_record(0, name=BODY)
URL = {"url": "http://127.0.0.1:1"}
SINKS: dict[str, dict[str, Any]] = {
    "bigquery": {"table": "shop-prod.d.t"},
    "clickhouse": URL,
    "datadog": {**URL, "api_key": "k", "agent_url": "http://127.0.0.1:1"},
    "elasticsearch": URL,
    "google_cloud_logging": {"project": "shop-prod"},
    "http": URL,
    "loki": URL,
    "otlp": URL,
    "splunk_hec": {**URL, "token": "t"},
}
NULLS = [
    {**record, **dict.fromkeys(names)}
    for record, names in product(
        (LOG, SPAN),
        (
            ["attributes"], ["resource"], ["context"], ["attributes", "resource", "context"],
            ["observed_time_unix_nano"], ["severity_number"], ["span_kind"], ["status_code"],
            ["scope"], ["parent_span_id", "trace_flags"], ["record_id"],
        ),
    )
]  # fmt: skip
OTHERS = [LOG | {"message": "of its own"}, LOG | {"status_code": "WEIRD"}, LOG | {"name": "n"}]
ACCEPTED = [*NULLS, *OTHERS, SPAN | {"status_code": "WEIRD"}]
MALFORMED = [
    {**record, name: value}
    for record, name, value in product(
        (LOG, SPAN),
        ("attributes", "resource", "context", "time_unix_nano", "end_time_unix_nano"),
        ([], [1], "text", -1, 1.5, 2**64 - 1, {}),
    )
]  # fmt: skip


def encoded(name: str, directory: Path, record: Any) -> tuple[str, list[str]]:
    """What it would send, as text, and why it would not."""
    settings = {"type": name, **SINKS[name]}
    made = make_sink(sink_kind(name).config.model_validate(settings), context(directory))
    (shown,) = made.preview(batch([record]))
    _, is_refused, reason = shown.target.partition("dead letters: ")
    return shown.body, [reason] if is_refused else []


def test_what_is_odd_here_is_well_formed() -> None:
    rows = shaped([json.dumps(record).encode() for record in ACCEPTED], "malformed")
    assert not any(row["malformed"] for row in rows)


@pytest.mark.parametrize("name", SINKS)
def test_a_well_formed_record_is_sent_with_its_body_however_odd_it_is(
    tmp_path: Path, name: str
) -> None:
    for record in ACCEPTED:
        sent, refused = encoded(name, tmp_path, record)
        if name == "otlp" and record.get("status_code") == "WEIRD" and record["kind"] == "span":
            assert refused == ["KeyError: 'WEIRD'"]  # OTLP has numbers for those that it knows
        else:
            assert BODY in sent, (record, refused)


@pytest.mark.parametrize("name", SINKS)
def test_a_malformed_record_that_is_routed_is_sent_with_its_body_or_is_a_dead_letter(
    tmp_path: Path, name: str
) -> None:
    for record in MALFORMED:
        sent, refused = encoded(name, tmp_path, record)
        assert refused or BODY in sent, record


def test_elasticsearch_gets_the_fields_of_a_record_without_attributes(tmp_path: Path) -> None:
    """An empty document would be there for good: what is sent again is answered with 409."""
    sent, _ = encoded("elasticsearch", tmp_path, LOG | {"attributes": None})
    assert '"message":"the-body-itself"' in sent
    assert '"penstock.kind":"log"' in sent
    odd, _ = encoded("elasticsearch", tmp_path, SPAN | {"status_code": "WEIRD"})
    assert '"event.outcome":"WEIRD"' in odd
