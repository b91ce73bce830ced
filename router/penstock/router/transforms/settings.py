"""The transforms of a route as data: a YAML list, each item one key with its settings."""

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, model_validator

from penstock.router.job.settings import Seconds, Settings
from penstock.router.transforms.fields import ENVELOPE, MAPS, parse_field
from penstock.router.transforms.sql import parse_select
from penstock.service.config_types import Form

KEY_BYTES_MIN: Final = 16
"""Minimum bytes of a key for hashes; a shorter one can be guessed."""


def _known(name: str) -> str:
    parse_field(name)
    return name


def _removable(name: str) -> str:
    if name in ENVELOPE:
        raise ValueError(f"{name} cannot be taken away: without it there is no record")
    return _known(name)


def _textual(name: str) -> str:
    field = parse_field(name)
    if field.type != "string" or field.path[0] in ENVELOPE:
        raise ValueError(f"{name} is no text that could be changed; drop it instead")
    return name


def _single(name: str) -> str:
    if parse_field(name).is_pattern:
        raise ValueError(f"{name} may be several fields; name one, without *")
    return name


def _member_of_attributes(name: str) -> str:
    field = parse_field(_single(name))
    if field.path[0] != "attributes" or not field.is_member:
        raise ValueError(f"{name} cannot be renamed; only attributes.KEY can: columns are fixed")
    return name


def _re2(pattern: str) -> str:
    try:
        pc.replace_substring_regex(pa.array([""]), pattern=pattern, replacement="")
    except pa.ArrowInvalid as error:
        raise ValueError(f"not a regular expression (RE2): {error}") from None
    return pattern


def _statement(text: str) -> str:
    parse_select(text)
    return text


Known = Annotated[str, AfterValidator(_known)]
Removable = Annotated[str, AfterValidator(_removable)]
Textual = Annotated[str, AfterValidator(_textual)]
Single = Annotated[str, AfterValidator(_textual), AfterValidator(_single)]
Attribute = Annotated[str, AfterValidator(_member_of_attributes)]
Pattern = Annotated[str, Field(min_length=1), AfterValidator(_re2)]
Statement = Annotated[str, Field(min_length=1), AfterValidator(_statement)]


class Mask(Settings):
    """Replace what a regular expression (RE2) finds; the whole text without a `pattern`."""

    fields: Annotated[list[Textual], Field(min_length=1)]
    pattern: Pattern | None = None
    replacement: str = "***"

    @model_validator(mode="after")
    def _replacement_fits(self) -> Self:
        try:
            pc.replace_substring_regex(
                pa.array(["x"]), pattern=self.regex, replacement=self.replacement
            )
        except pa.ArrowInvalid as error:
            raise ValueError(f"replacement: {error}") from None
        return self

    @property
    def regex(self) -> str:
        return self.pattern or r"(?s)\A.*\z"


class Hash(Settings):
    """Replace text by its HMAC-SHA256 in hex: the same text, the same hash, under one key."""

    fields: Annotated[list[Textual], Field(min_length=1)]
    key_file: Path

    def key(self) -> bytes:
        """The key, without white space around it.

        Raises:
            ValueError: The file cannot be read, or holds too little.
        """
        try:
            key = self.key_file.read_bytes().strip()
        except OSError as error:
            raise ValueError(f"{self.key_file}: cannot be read: {error.strerror}") from None
        if len(key) < KEY_BYTES_MIN:
            raise ValueError(f"{self.key_file}: the key is shorter than {KEY_BYTES_MIN} bytes")
        return key


class Sample(Settings):
    """Keep a share of the records; `sample_weight` grows so that weighted counts stay right."""

    rate: Annotated[float, Field(gt=0, lt=1)]
    by: Single | Literal["trace_id"] = "trace_id"
    seed: Annotated[
        str, Form(r"^[\x20-\x7e]{0,32}$", "at most 32 printable characters of ASCII")
    ] = ""

    @model_validator(mode="after")
    def _rate_is_exact_enough(self) -> Self:
        if math.isnan(self.rate) or self.rate < 1e-9:
            raise ValueError("rate: below 0.000000001 nothing would be left; leave the route out")
        return self


class Dedupe(Settings):
    """Leave out records whose `record_id` was there before, within a time of the log."""

    within_s: Seconds = 600.0
    max_ids: Annotated[int, Field(ge=1000, le=10_000_000)] = 500_000


class Transform(Settings):
    """One step: exactly one of the keys."""

    sql: Statement | None = None
    select: Annotated[list[Known], Field(min_length=1)] | None = None
    drop: Annotated[list[Removable], Field(min_length=1)] | None = None
    rename: Annotated[dict[Attribute, Attribute], Field(min_length=1)] | None = None
    mask: Mask | None = None
    hash: Hash | None = None
    sample: Sample | None = None
    dedupe: Dedupe | None = None
    map: Literal["ecs", "splunk_cim", "loki"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_key(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) != 1:
            named = ", ".join(map(str, given)) or "none"
            raise ValueError(f"each step has one key, such as `drop: [body]`; here: {named}")
        return given

    @model_validator(mode="after")
    def _names_are_apart(self) -> Self:
        if self.rename is not None and len(set(self.rename.values())) < len(self.rename):
            raise ValueError("rename: two fields would get one name")
        for name, value in self:
            if name in self.model_fields_set and value is None:
                raise ValueError(f"{name}: has no settings")
        return self

    @property
    def verb(self) -> str:
        (name,) = self.model_fields_set
        return name


def check_order(steps: list[Transform]) -> list[Transform]:
    """`sql` comes first, for Spark does it; nothing follows a mapping, which makes documents."""
    if any(step.sql is not None for step in steps[1:]):
        raise ValueError("sql must be the first step, and the only one of its kind")
    for step in steps[:-1]:
        if step.map is not None:
            raise ValueError("map must be the last step: what it makes is no record any more")
    if sum(step.dedupe is not None for step in steps) > 1:
        raise ValueError("dedupe stands there twice")
    return steps


Steps = Annotated[list[Transform], AfterValidator(check_order)]

__all__ = ["MAPS", "Dedupe", "Hash", "Mask", "Sample", "Steps", "Transform"]
