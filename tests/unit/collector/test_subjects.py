"""Subjects made of records' fields."""

from penstock.collector.transforms.expressions.subject_template import SubjectTemplate, join_subject


def test_long_values_are_not_remembered() -> None:
    template = SubjectTemplate("telemetry.{kind}.{attributes.tenant}")
    join_subject.cache_clear()
    ends = ("a", "b", "c")
    subjects = {
        template.subject({"kind": "log", "attributes": {"tenant": "x" * 30_000 + end}})
        for end in ends
    }
    assert len(subjects) == 1
    assert join_subject.cache_info().currsize == 1
