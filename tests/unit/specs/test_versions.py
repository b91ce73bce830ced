"""The registry: names, versions, and classes that may not be."""

import pytest

from penstock.specs import Event, RefusedSpecError, UnknownSpecError
from penstock.specs.models.envelope import SchemaName, model_for, resolve, specs


class Opened(Event, spec="versions_test.opened/1.1"):
    """A specialised spec of this test."""

    door: int


class OpenedWide(Opened, spec="versions_test.opened_wide/1.0"):
    """A spec derived from another specialised one."""

    width: int


def test_the_five_base_specs_are_known() -> None:
    assert {"log/1.0", "span/1.0", "metric/1.1", "event/1.0", "audit/1.0"} <= specs().keys()


def test_schema_id_is_taken_apart() -> None:
    assert SchemaName.parse("a.b_c/2.13") == SchemaName("a.b_c", 2, 13)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "log",
        "Log/1.0",
        "log/1",
        "log/1.0.0",
        "log/1.00",
        "a..b/1.0",
        "a/1.0\n",
        "a" * 96 + "/1.0",
    ],
)
def test_malformed_schema_id_is_refused(text: str) -> None:
    with pytest.raises(RefusedSpecError):
        SchemaName.parse(text)


def test_derived_spec_keeps_its_parents_attribute_names() -> None:
    assert OpenedWide.own_fields == {"door": "versions_test.door", "width": "versions_test.width"}
    assert OpenedWide(door=1, width=2).event_name == "versions_test.opened_wide"


def test_taken_name_is_refused() -> None:
    with pytest.raises(RefusedSpecError, match="already"):

        class Other(Event, spec="versions_test.opened/1.1"):
            """Has the id of `Opened`."""


def test_inherited_field_cannot_be_changed() -> None:
    with pytest.raises(RefusedSpecError, match="subject is already defined"):

        class Changed(Event, spec="versions_test.changed/1.0"):
            """Makes a field of its kind mean something else."""

            subject: int  # type: ignore[assignment]


def test_unknown_spec_names_those_that_are_known() -> None:
    with pytest.raises(UnknownSpecError, match=r"log/1\.0"):
        model_for("nothing/1.0")


def test_resolution_by_version() -> None:
    assert resolve("versions_test.opened/1.1", "event").exact
    newer = resolve("versions_test.opened/1.7", "event")
    assert (newer.model, newer.exact) == (Opened, False)
    assert resolve("versions_test.opened/2.0", "event").model is None
    unknown = resolve("versions_test.unheard_of/2.0", "event")
    assert (unknown.model, unknown.exact) == (model_for("event/1.0"), False)
