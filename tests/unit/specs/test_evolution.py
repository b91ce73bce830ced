"""The checker's verdicts, against an oracle that tries every value of a small world."""

from itertools import product
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from penstock.specs import Event, Sensitive
from penstock.specs.formats.schemas import json_schema
from penstock.specs.models.kinds import BASE_MODELS
from penstock.specs.versions.compat import Incompatible, incompatible, unreadable

ABSENT = object()
VALUES: list[Any] = [
    ABSENT, None, True, False, -1, 0, 4, 5, 6, 10, 11, -0.5, 0.0, 4.5, 5.5, 10.5, "", "a", "b",
    "ab", "ba", "abc", "abcd", "bab", "babc", "5", [], [1], ["a"], [1, "a"], [1, 1], [1, 1, 1],
    [True], [None], ["a", "a"], ["a", "a", "a"], [True, True], [True, True, True],
]  # fmt: skip
"""Both sides of every bound that fields below have, lists of each type by themselves."""

Fields = dict[str, Any]
"""Field name to (annotation, default), as `create_model` takes them."""


def model(fields: Fields, extra: Literal["forbid", "ignore"]) -> type[BaseModel]:
    config = ConfigDict(strict=True, extra=extra)
    found: type[BaseModel] = create_model("M", __config__=config, **fields)
    return found


def accepts(judge: type[BaseModel], record: dict[str, Any]) -> bool:
    try:
        judge.model_validate(record)
    except ValidationError:
        return False
    return True


def oracle_says_readable(writer: Fields, reader: Fields) -> bool:
    """Whether the reader takes every record of the small world that the writer may write."""
    writes, reads = model(writer, "forbid"), model(reader, "ignore")
    names = sorted(writer.keys() | reader.keys())
    worlds = [
        dict(zip(names, values, strict=True)) for values in product(VALUES, repeat=len(names))
    ]
    records = [{k: v for k, v in world.items() if v is not ABSENT} for world in worlds]
    return all(accepts(reads, record) for record in records if accepts(writes, record))


def checker_says_readable(writer: Fields, reader: Fields) -> bool:
    schemas = [model(fields, "forbid").model_json_schema() for fields in (writer, reader)]
    return not unreadable(*schemas)


def required(annotation: Any) -> Fields:
    return {"a": (annotation, ...)}


def optional(annotation: Any) -> Fields:
    return {"a": (annotation | None, None)}


A: Final[Any] = Literal["a"]
AB: Final[Any] = Literal["a", "b"]
CHANGES: list[tuple[str, Fields, Fields, str]] = [
    ("add optional", {}, optional(int), "full"),
    ("add with default", {}, {"a": (int, 5)}, "full"),
    ("remove optional", optional(int), {}, "full"),
    ("add required", {}, required(int), "forward"),
    ("optional to required", optional(int), required(int), "forward"),
    ("tighten maxLength", required(Annotated[str, Field(max_length=4)]),
     required(Annotated[str, Field(max_length=2)]), "forward"),
    ("add pattern", required(str), required(Annotated[str, Field(pattern="^a")]), "forward"),
    ("remove enum member", required(Literal["a", "b"]), required(Literal["a"]), "forward"),
    ("remove required", required(int), {}, "backward"),
    ("required to optional", required(int), optional(int), "backward"),
    ("int to float", required(int), required(float), "backward"),
    ("int to int or str", required(int), required(int | str), "backward"),
    ("add enum member", required(Literal["a"]), required(Literal["a", "b"]), "backward"),
    ("enum to str", required(Literal["a", "b"]), required(str), "backward"),
    ("loosen bound", required(Annotated[int, Field(le=5)]),
     required(Annotated[int, Field(le=10)]), "backward"),
    ("rename required", required(int), {"b": (int, ...)}, "none"),
    ("int to str", required(int), required(str), "none"),
    ("open enum gains a member", required(A | str), required(AB | str),
     "full"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_each_kind_of_change_has_the_verdict_of_the_oracle(
    old: Fields, new: Fields, expected: str
) -> None:
    verdicts = {(True, True): "full", (True, False): "backward", (False, True): "forward"}
    for readable in (oracle_says_readable, checker_says_readable):
        backward, forward = readable(old, new), readable(new, old)
        assert verdicts.get((backward, forward), "none") == expected


def bounded(kind: Any, least: str, most: str, values: list[int]) -> st.SearchStrategy[Any]:
    """Without ranges of one value, which are an enumeration in disguise."""
    pairs: list[Any] = [
        {least: low, most: high}
        for low, high in product([None, *values], repeat=2)
        if low is None or high is None or low < high
    ]
    return st.sampled_from(pairs).map(lambda bounds: Annotated[kind, Field(**bounds)])


PATTERN = st.just(Annotated[str, Field(pattern="^a")])
SCALARS = st.one_of(
    bounded(int, "ge", "le", [0, 5, 10]),
    bounded(float, "ge", "le", [0, 5, 10]),
    bounded(str, "min_length", "max_length", [1, 2, 3]),
    st.just(bool),
    st.lists(st.sampled_from(["a", "ab", "5", 5, 10]), min_size=1, max_size=3, unique=True).map(
        lambda values: Literal[tuple(values)]
    ),
)
LISTS = st.tuples(st.sampled_from([int, str, bool, int | str]), st.sampled_from([None, 1, 2])).map(
    lambda pair: Annotated[GenericAlias(list, pair[0]), Field(max_length=pair[1])]
)
TYPES = st.one_of(
    PATTERN,
    SCALARS,
    LISTS,
    st.tuples(SCALARS, SCALARS).map(lambda pair: pair[0] | pair[1]),
    SCALARS.map(lambda kind: kind | None),
)
FIELD = st.one_of(
    TYPES.map(lambda kind: (kind, ...)),
    TYPES.map(lambda kind: (kind | None, None)),
    st.just((int, 5)),
    st.just((str, "a")),
)
FIELDS = st.fixed_dictionaries(
    {}, optional={"a": FIELD, "b": st.sampled_from([(int, ...), (int, 5)])}
)


@settings(max_examples=250, deadline=None)
@given(FIELDS, FIELDS)
def test_what_the_oracle_sees_break_the_checker_sees_too(old: Fields, new: Fields) -> None:
    """The other way round it may be wary: it compares patterns, not what they match."""
    if not oracle_says_readable(old, new):
        assert not checker_says_readable(old, new)


@settings(max_examples=250, deadline=None)
@given(SCALARS | LISTS, SCALARS | LISTS)
def test_one_field_of_one_type_has_the_verdict_of_the_oracle(old: Any, new: Any) -> None:
    assert oracle_says_readable(required(old), required(new)) == checker_says_readable(
        required(old), required(new)
    )


@given(FIELDS)
def test_nothing_breaks_without_a_change(fields: Fields) -> None:
    assert checker_says_readable(fields, fields)


def findings(new: type[Event], **earlier: type[Event]) -> list[Incompatible]:
    schemas = {version: json_schema(old) for version, old in earlier.items()}
    return list(incompatible(json_schema(new), schemas))


class First(Event, spec="evolution_test.thing/1.0"):
    """The first version."""

    note: str | None = None
    email: Annotated[str | None, Sensitive("pii")] = None


class Second(Event, spec="evolution_test.thing/1.1"):
    """Without the note."""

    email: Annotated[str | None, Sensitive("pii", "drop")] = None


class Third(Event, spec="evolution_test.thing/1.2"):
    """The note is back, as something else."""

    note: int | None = None
    email: Annotated[str | None, Sensitive("pii", "drop")] = None


class Fourth(Event, spec="evolution_test.thing/1.3"):
    """The e-mail address is no longer dropped."""

    email: Annotated[str | None, Sensitive("pii", "redact")] = None


def test_every_earlier_minor_counts_not_only_the_last() -> None:
    assert findings(Second, first=First) == []
    assert findings(Third, second=Second) == []
    found = findings(Third, first=First, second=Second)
    assert {(each.earlier, each.broken.field, each.broken.rule) for each in found} == {
        ("first", "note", "type")
    }


def test_weaker_marker_is_a_break() -> None:
    (found,) = findings(Fourth, second=Second)
    assert (found.broken.field, found.broken.rule) == ("email", "sensitivity")
    assert "strict" in found.fix


def test_base_kinds_are_compatible_with_themselves_at_every_depth() -> None:
    for base in BASE_MODELS.values():
        assert unreadable(json_schema(base), json_schema(base)) == []


def test_nested_field_is_named_with_its_path() -> None:
    new = json_schema(Second)
    old = json_schema(First)
    new["$defs"]["Context"]["properties"]["user.id"]["anyOf"][0]["maxLength"] = 64
    (found,) = [each for each in unreadable(old, new) if each.rule == "maxLength"]
    assert found.field == "context.user.id"
    assert found.detail == "128 is above 64"
