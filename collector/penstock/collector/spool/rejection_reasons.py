"""Sentences for the short reasons that the validator gives.

A reason is a code, with the field and the rule that it breaks where there is one: `missing_field:
body`, `invalid: severity_number: int_parsing`. The rule is pydantic's name for it, or a sentence
where it is between fields: `invalid: record: min is above max`. `transform NAME: ` stands before
the reason of a transform. Records lie in quarantine by their reasons, which scripts may look for;
so the sentence stands beside them.
"""

from collections.abc import Mapping
from typing import Final

from penstock.specs.limits import DEPTH_MAX, RECORD_BYTES_MAX

_CODES: Final[Mapping[str, str]] = {
    "too_large": f"the record has more than {RECORD_BYTES_MAX} bytes",
    "not_json": "the line is no JSON",
    "not_an_object": "the line is JSON, and no object",
    "too_deep": f"more than {DEPTH_MAX} objects and lists are inside each other",
    "duplicate_key": "an object has a key twice",
    "bad_kind": "`kind` is missing, or none of log, span, metric, event and audit",
    "bad_schema": "`schema` is missing, or no spec's name and version, as log/1.0",
    "kind_mismatch": "`schema` names a spec of another kind than `kind`",
    "unknown_major": "`schema` names a major version that nothing installed here can read",
    "integer_too_large": "a field that the spec does not have holds an integer beyond 64 bits: the "
    "record can go on as it came, and be neither changed, redacted nor held",
    "not_otlp": "a part of it is not as OTLP has it",
    "nats_max_payload": "it is larger than the messages that the NATS server takes",
}

_RULES: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is no field of the spec",
    "value_error": "breaks a rule of the spec",
    "assertion_error": "breaks a rule of the spec",
    "none_required": "must be null",
    "literal_error": "is none of the values that the spec allows",
    "enum": "is none of the values that the spec allows",
    "string_pattern_mismatch": "has not the form that the spec demands",
    "string_too_long": "is too long",
    "string_too_short": "is too short, or empty",
    "too_long": "has too many entries",
    "too_short": "has too few entries",
    "greater_than": "is too small",
    "greater_than_equal": "is too small",
    "less_than": "is too large",
    "less_than_equal": "is too large",
    "finite_number": "must be a finite number",
    "int_parsing_size": "is an integer that is too large",
    "int_from_float": "must be an integer, and has a fraction",
    "string_unicode": "is no text in UTF-8",
    "union_tag_invalid": "has a part of a type that there is not",
    "union_tag_not_found": "has a part without a type",
}
"""Meanings of pydantic's rules for a field."""

_TYPES: Final[Mapping[str, str]] = {
    "int": "an integer",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "a text",
    "bytes": "a text",
    "dict": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "dataclass": "an object",
    "mapping": "an object",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "uuid": "a UUID",
    "datetime": "a time",
}
"""Meanings of the types in `int_type`, `int_parsing` and the like."""


def meaning(reason: str) -> str | None:
    """A sentence for a reason of the validator; None for others, which are sentences themselves."""
    code, _, detail = reason.partition(": ")
    if code.startswith("transform ") and detail:
        sentence = meaning(detail)
        return sentence and f"{code}: {sentence}"
    if code == "missing_field" and detail:
        fields = detail.split(", ")
        return f"{' and '.join(fields)} {'is' if len(fields) == 1 else 'are'} missing"
    if code == "invalid" and detail:
        field, _, rule = detail.rpartition(": ")
        if " " in rule:  # a rule between fields, in its own words
            return rule
        return f"{field} {_of_rule(rule)}" if field else None
    return None if detail else _CODES.get(code)


def _of_rule(rule: str) -> str:
    if rule in _RULES:
        return _RULES[rule]
    kind, _, how = rule.rpartition("_")
    if how in ("type", "parsing") and kind in _TYPES:
        return f"must be {_TYPES[kind]}"
    return f"breaks the rule {rule}"
