"""What the publisher makes of a batch."""

import pyarrow as pa
import pytest

from penstock.collector.delivery.ordered_queue import Batch
from penstock.collector.delivery.publisher import encode_lines
from penstock.logd.format.batch import SCHEMA, decode_body

TIMES = (0, 1, 2**63 - 1)


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000, 1025])
def test_a_body_has_the_bytes_that_arrow_makes_of_lists(count: int) -> None:
    lines = [b"%d" % number * (number % 5) for number in range(count)]
    times = [TIMES[number % 3] for number in range(count)]
    body = encode_lines("telemetry.logs.shop", Batch(0, [*range(count)], times, lines))
    columns = {
        "offset_delta": range(count), "timestamp": times, "value": lines,
        "subject": ["telemetry.logs.shop"] * count,
    }  # fmt: skip
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    assert decode_body(body).equals(batch)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    found = sink.getvalue().to_pybytes()
    assert body.rstrip(b"\0") in found
