"""What publishers send, and the records of a job that reads lines."""

import json

import pytest

from tests.bench.publisher import DIFFERENT, message, payload, payloads
from tests.bench.stages import records_of_lines


@pytest.mark.parametrize("size_bytes", [64, 256, 5 * 1024])
def test_payloads_have_one_size_and_differ(size_bytes: int) -> None:
    different = payloads(size_bytes)
    assert len(set(different)) == DIFFERENT
    assert {len(body) for body in different} == {size_bytes}


def test_messages_of_different_payloads_have_one_size() -> None:
    """Publishers send parts of a block of them."""
    sizes = {len(message("logd.bench", payload(256, number))) for number in (0, 9, 999_999)}
    assert len(sizes) == 1


def test_each_line_becomes_a_record_and_time_goes_on() -> None:
    records = [json.loads(record) for record in records_of_lines(1_200)]
    assert len(records) == 1_200
    assert len({record["body"] for record in records}) > 1_000
    assert len({record["observed_time_unix_nano"] for record in records}) == 3
