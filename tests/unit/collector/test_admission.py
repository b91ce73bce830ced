"""What the gate lets through, with what is sensitive taken out."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.collector.config import SensitiveSection
from tests.support.collector_graph import delivered, graph_of, process

KEY = "k1:0123456789abcdef"
RESOURCE = b'{"service.name":"shop"}'


def line(**more: Any) -> bytes:
    record = {"schema": "log/1.0", "kind": "log", "time_unix_nano": 1, "severity_number": 9}
    return json.dumps(record | {"body": "paid"} | more).encode()


def admitted(given: bytes, **section: Any) -> Any:
    outcome = process(graph_of({"sensitive": section}), given, resource=RESOURCE, observed_ns=2)
    [(subject, batch)] = [(key[0], batch) for key, batch in outcome.batches.items()]
    return SimpleNamespace(
        subject=subject, line=batch.lines[0], scrubbed=outcome.scrubbed == 1, outcome=outcome
    )


def test_what_is_harmless_goes_on_as_it_came() -> None:
    found = admitted(line(attributes={"order": "o-1"}))
    assert not found.scrubbed
    assert found.line.startswith(line(attributes={"order": "o-1"})[:-1])
    assert found.subject == "telemetry.logs.shop"


def test_markers_and_searches_are_applied_whoever_sent_it() -> None:
    given = line(
        context={"user.id": "u-1", "user.email": "a@b.example"},
        attributes={"password": "hunter2", "note": "card 4111 1111 1111 1111"},
    )
    found = admitted(given)
    record = json.loads(found.line)
    assert found.scrubbed
    assert record["context"] == {"user.id": "[redacted:pseudonym]"}
    assert record["attributes"] == {
        "password": "[redacted:secret]", "note": "card [redacted:pci]",
    }  # fmt: skip


def test_pseudonyms_are_hashed_with_the_collectors_key_once() -> None:
    first = admitted(line(context={"user.id": "u-1"}), hash_key=KEY)
    user = json.loads(first.line)["context"]["user.id"]
    assert user.startswith("hk1:")
    again = admitted(line(context={"user.id": user}), hash_key=KEY)
    assert not again.scrubbed


def test_operators_may_keep_what_specs_drop() -> None:
    section = {"without_key": "keep", "actions": {"context.user.email": "keep"}, "search": False}
    context = {"user.id": "u-1", "user.email": "a@b.example"}
    assert not admitted(line(context=context), **section).scrubbed
    assert not admitted(line(context=context), enabled=False).scrubbed


def test_a_malformed_key_is_refused_without_being_shown() -> None:
    with pytest.raises(ValidationError, match="a hash key") as caught:
        SensitiveSection.model_validate({"hash_key": "k1:short"})
    assert "k1:short" not in str(caught.value.errors(include_input=False))


def test_what_breaks_its_spec_is_refused() -> None:
    outcome = process(graph_of({}), b"{}", resource=RESOURCE)
    assert [refused.reason for refused in outcome.refused] == ["bad_kind"]
    assert delivered(outcome) == []
