"""Dead letters: records that a destination refuses for good, kept with the reason.

    DIR/SINK/logs.5f2c19aa-0-00000000000000000120-00000000000000000121.ndjson

One JSON object a line: `time`, `job`, `sink`, `stream`, `partition`, `offset`, `subject`, `status`,
`reason`, `attempt`, and the record as `value` where it is UTF-8 text, else as `value_base64`. The
same refusal met again replaces its file.
"""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.router.core.delivery import Refused
from penstock.router.durable import write_whole
from penstock.router.sinks.sink import SinkContext


def keep_dead_letters(rows: pa.Table, refused: Refused, name: str, context: SinkContext) -> Path:
    """Write refused rows to their file; returns it."""
    path = context.dead_letters / context.sink / f"{name}.ndjson"
    moment = datetime.fromtimestamp(context.clock.unix_ns() // 10**9, UTC).isoformat()
    about = {"time": moment, "job": context.job, "sink": context.sink}
    why = {"status": refused.status, "reason": refused.reason, "attempt": refused.attempt}
    lines = [json.dumps(about | row | why) for row in _rows(rows)]
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return path


def _rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    columns = rows.select(["stream", "partition", "offset", "subject", "value"])
    for row in columns.to_pylist():
        value = row.pop("value")
        yield row | as_text(value)


def as_text(value: bytes | None) -> dict[str, str | None]:
    """A payload as part of a JSON object: `value`, or `value_base64` where it is no text."""
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
