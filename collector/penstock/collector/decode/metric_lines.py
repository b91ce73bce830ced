"""Metric points that the collector itself makes, as record lines."""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.collector.decode.attributes import flatten
from penstock.specs.models.scalars import not_finite_word


def metric_line(  # noqa: PLR0913 - a point's fields
    name: str,
    unit: str,
    attributes: Mapping[str, Any],
    typed: Mapping[str, Any],
    *,
    time_ns: int,
    observed_ns: int,
    resource: Mapping[str, Any],
) -> bytes:
    """One point's line.

    Args:
        name: As its source has it.
        unit: UCUM's; empty for none.
        attributes: The series' dimensions, as its source has them.
        typed: The fields of its metric type; floats may be NaN or infinite.
        time_ns: When it was measured.
        observed_ns: When it came to the collector.
        resource: Who measured it.
    """
    own, left_out = flatten(attributes)
    record: dict[str, Any] = {
        "schema": "metric/1.1",
        "kind": "metric",
        "time_unix_nano": time_ns,
        "observed_time_unix_nano": observed_ns,
        "name": name,
        "unit": unit or "1",
        **{key: not_finite_word(value) for key, value in typed.items()},
        "resource": resource,
        "attributes": own,
    }
    if left_out:
        record["dropped_attributes_count"] = left_out
    return orjson.dumps(record)
