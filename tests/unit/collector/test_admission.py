"""What the validator lets through, with what is sensitive taken out."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.collector.config import SensitiveSection
from penstock.service import ConfigError
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


def test_the_hash_key_may_be_in_a_file_that_collectors_share(tmp_path: Path) -> None:
    path = tmp_path / "pseudonyms.key"
    path.write_text(f"{KEY}\n")
    given = line(context={"user.id": "u-1"})
    users = {
        json.loads(admitted(given, hash_key={"file": str(path)}).line)["context"]["user.id"],
        json.loads(admitted(given, hash_key=KEY).line)["context"]["user.id"],
    }
    assert len(users) == 1
    path.write_text("k1:short")
    with pytest.raises(ConfigError, match=r"pseudonyms\.key: a hash key needs at least 16 bytes"):
        admitted(given, hash_key={"file": str(path)})
    with pytest.raises(ConfigError, match="No such file"):
        admitted(given, hash_key={"file": str(tmp_path / "none")})


def test_operators_may_keep_what_specs_drop() -> None:
    section = {"without_key": "keep", "actions": {"context.user.email": "keep"}, "search": False}
    context = {"user.id": "u-1", "user.email": "a@b.example"}
    assert not admitted(line(context=context), **section).scrubbed
    assert not admitted(line(context=context), enabled=False).scrubbed


TOLD = {"attributes": {"password": "x", "to": "a@b.example", "number": "4111111111111111"}}


def test_operators_switch_detectors_off_and_except_fields_and_patterns() -> None:
    section: dict[str, Any] = {"detectors": {"email": False, "names": False}}
    found = json.loads(admitted(line(**TOLD), **section).line)["attributes"]
    assert found == TOLD["attributes"] | {"number": "[redacted:pci]"}
    section = {"except": {"fields": ["attributes.number"], "patterns": ["@b[.]example$"]}}
    found = json.loads(admitted(line(**TOLD), **section).line)["attributes"]
    assert found == TOLD["attributes"] | {"password": "[redacted:secret]"}
    section = {"except": {"fields": ["body"]}}
    assert not admitted(line(body="to a@b.example"), **section).scrubbed


def test_what_is_only_counted_stays_and_declared_fields_are_treated_all_the_same() -> None:
    given = line(**TOLD, context={"user.id": "u-1"}, body="to a@b.example")
    found = admitted(given, mode="count")
    record = json.loads(found.line)
    assert record["attributes"] == TOLD["attributes"]
    assert record["body"] == "to a@b.example"
    assert record["context"] == {"user.id": "[redacted:pseudonym]"}
    assert found.outcome.found == {"names": 1, "email": 2, "card": 1, "without_key": 1}
    assert not admitted(line(**TOLD), mode="count").scrubbed
    assert admitted(given).outcome.found == found.outcome.found


def test_attributes_named_as_in_the_context_never_go_on_in_clear() -> None:
    given = line(attributes={"user.id": "u-1", "client.address": "192.0.2.7"})
    assert json.loads(admitted(given).line)["attributes"] == {
        "user.id": "[redacted:pseudonym]", "client.address": "192.0.2.0",
    }  # fmt: skip
    assert json.loads(admitted(given, hash_key=KEY).line)["attributes"]["user.id"][:4] == "hk1:"


def test_an_exception_that_is_no_pattern_is_refused() -> None:
    with pytest.raises(ValidationError, match="is no regular expression"):
        SensitiveSection.model_validate({"except": {"patterns": ["("]}})


def test_a_malformed_key_is_refused_without_being_shown() -> None:
    with pytest.raises(ValidationError, match="a hash key") as caught:
        SensitiveSection.model_validate({"hash_key": "k1:short"})
    assert "k1:short" not in str(caught.value.errors(include_input=False))


def test_what_breaks_its_spec_is_refused() -> None:
    outcome = process(graph_of({}), b"{}", resource=RESOURCE)
    assert [refused.reason for refused in outcome.refused] == ["bad_kind"]
    assert delivered(outcome) == []
