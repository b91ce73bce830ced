"""Dead letters: records that do not get into a sink for good, kept with the reason.

    DIR/SINK/logs.5f2c19aa-0-00000000000000000120-00000000000000000121.ndjson

One JSON object a line: `time` (of the refusal), `job`, `sink`, `stream`, `incarnation`,
`partition`, `offset`, `subject`, `timestamp_ns` and `key_base64` where the sink gets them, `code`,
`status` (of HTTP, else 0), `reason`, `attempt`, and the record as it lies in the log, before any
transform, as `value` where it is UTF-8 text, else as `value_base64`. The same refusal met again
replaces its file. Letters that were replayed lie in `DIR/SINK/done`.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.durable import write_whole
from penstock.router.sinks.sink import SinkContext

_WANTED: Final = ("stream", "partition", "offset", "subject", "timestamp_ns", "key", "value")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why records do not get into a sink.

    Attributes:
        code: What to look for, such as `http_400` or `not_a_record`.
        text: For people.
        status: Of HTTP; 0 where there is none.
        attempt: How often it had been tried.
    """

    code: str
    text: str
    status: int = 0
    attempt: int = 1


def lay_aside(rows: pa.Table, reason: Reason, context: SinkContext) -> list[Path]:
    """Keep refused rows and count them; one file for each partition of the log.

    Args:
        rows: With the columns `stream`, `partition`, `offset` and `value` at least.
        reason: Why.
        context: The sink's.
    """
    paths = []
    places = rows.select(["stream", "partition"]).group_by(["stream", "partition"])
    for place in places.aggregate([]).to_pylist():
        of_place = pc.and_(
            pc.equal(rows.column("stream"), place["stream"]),
            pc.equal(rows.column("partition"), place["partition"]),
        )
        mine = rows.filter(of_place)
        ends = pc.min_max(mine.column("offset")).as_py()
        tag = context.stream_tag(place["stream"])
        name = f"{tag}-{place['partition']}-{ends['min']:020d}-{ends['max']:020d}"
        paths.append(_keep(mine, reason, name, context))
    context.meter.failed("dead_letters", records=rows.num_rows)
    return paths


def _keep(rows: pa.Table, reason: Reason, name: str, context: SinkContext) -> Path:
    rows = context.originals.of(rows)
    path = context.dead_letters / context.sink / f"{name}.ndjson"
    moment = datetime.fromtimestamp(context.clock.unix_ns() // 10**9, UTC).isoformat()
    about = {"time": moment, "job": context.job, "sink": context.sink}
    why = {
        "code": reason.code,
        "status": reason.status,
        "reason": reason.text,
        "attempt": reason.attempt,
    }
    lines = [json.dumps(about | row | why) for row in _rows(rows, context)]
    write_whole(path, ("\n".join(lines) + "\n").encode())
    if context.letter_stream is not None:
        context.letter_stream.publish(lines)
    return path


def _rows(rows: pa.Table, context: SinkContext) -> Iterator[dict[str, Any]]:
    wanted = [name for name in _WANTED if name in rows.column_names]
    for row in rows.select(wanted).to_pylist():
        value = row.pop("value")
        if (key := row.pop("key", None)) is not None:
            row["key_base64"] = base64.b64encode(key).decode()
        row["incarnation"] = context.incarnations.get(row["stream"], "")
        yield row | as_text(value)


def as_text(value: bytes | None) -> dict[str, str | None]:
    """A payload as part of a JSON object: `value`, or `value_base64` where it is no text."""
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
