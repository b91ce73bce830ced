"""Compressed batches of the Unix socket, by the urgency of their records."""

import json

import pytest
import zstandard

from penstock.collector.decode.units import decode_records
from penstock.collector.spool.spool import Unit, take_apart


@pytest.mark.parametrize("expanded", [1000, 9 * 1024 * 1024])
def test_audit_in_a_batch_that_expands_far_is_urgent(expanded: int) -> None:
    """Taken apart it would not be compressed: it stays whole, and audit waits behind no logs."""
    lines = [b'{"kind":"log","filler":"%b"}' % (b"x" * expanded), b'{"kind":"audit"}']
    head = {"batch": 1, "sender": "s", "seq": 1, "count": 2, "resource": {}, "codec": "zstd"}
    body = zstandard.compress(b"\n".join(lines))
    unit = Unit("app", "unix", json.dumps(head).encode() + b"\n" + body, 2, 5)
    parts = take_apart(unit)
    assert [part.kind for part in parts] == (["audit", "logs"] if expanded == 1000 else ["audit"])
    assert [line for part in parts for line in sorted(decode_records(part, {}).lines)] == (
        [lines[1], lines[0]] if expanded == 1000 else sorted(lines)
    )
