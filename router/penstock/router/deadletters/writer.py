"""Dead letters, written: their fields, and the files that keep them with the reason.

    DIR/SINK/logs.5f2c19aa-0-00000000000000000120-00000000000000000121.ndjson

One JSON object a line: `time` (of the refusal), `job`, `sink`, `stream`, `incarnation`,
`partition`, `offset`, `subject`, `timestamp_ns` and `key_base64` where the sink gets them, `code`,
`status` (of HTTP, else 0), `reason`, `attempt`, and the record as it lies in the log, before any
transform, as `value` where it is UTF-8 text, else as `value_base64`. The same refusal met again
replaces its file: the name says the first and the last offset, and where some between them are
missing it has a digest of all before `.ndjson`. Dead letters that were replayed lie in
`DIR/SINK/done`.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.clock import text_now
from penstock.base.files import atomic_write
from penstock.router.columns.run_length import runs
from penstock.router.columns.schema import MARKS
from penstock.router.delivery.batch_names import POSITION
from penstock.router.read.offsets import digest_of
from penstock.router.sinks.sink import SinkContext

_WANTED: Final = (*POSITION, "subject", "timestamp_ns", "key", "value")
MALFORMED: Final = "malformed"
"""The code of rows that are no records."""

MALFORMED_COLUMNS: Final = frozenset({*_WANTED, *MARKS} - {"value"})
"""Columns that dead letters of malformed rows are made of."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of one file of dead letters, so that not too much is held in memory at once.

    Attributes:
        dead_letters: Maximum dead letters in a file.
        values_bytes: Bytes of their values: a file ends with the dead letter that reaches it.
    """

    dead_letters: int = 5000
    values_bytes: int = 32 * 1024 * 1024


FILE_LIMITS: Final = FileLimits()


@dataclass(frozen=True, slots=True)
class Reason:
    """Why records do not get into a sink.

    Attributes:
        code: Code for searches, such as `http_400` or `not_a_record`.
        text: Description for people.
        status: Status of HTTP; 0 where there is none.
        attempt: Number of attempts before.
    """

    code: str
    text: str
    status: int = 0
    attempt: int = 1


def send_to_dlq(rows: pa.Table, reason: Reason, context: SinkContext) -> list[Path]:
    """Keep refused rows and count them; a file for each partition of the log.

    The rows have at least the columns `stream`, `partition`, `offset` and `value`.
    """
    return send_each_to_dlq(rows, [reason] * rows.num_rows, context)


def send_malformed_to_dlq(rows: pa.Table, context: SinkContext) -> list[Path]:
    """Keep rows that are no records, with `MALFORMED_COLUMNS`, each with its own reason."""
    reasons = [Reason(MALFORMED, text) for text in rows.column("malformed_reason").to_pylist()]
    names = ["value" if name == "malformed_value" else name for name in rows.column_names]
    return send_each_to_dlq(rows.rename_columns(names), reasons, context)


def send_each_to_dlq(
    rows: pa.Table,
    reasons: Sequence[Reason],
    context: SinkContext,
    *,
    limits: FileLimits = FILE_LIMITS,
) -> list[Path]:
    """Keep refused rows, in any order, and count them, each with its own reason.

    They make as few files as can be.

    Raises:
        StoppedError: The sink is to stop and not all files are written; the rows come again.
    """
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in POSITION])
    rows, reasons = rows.take(order), [reasons[number] for number in order.to_pylist()]
    originals = context.originals.of(rows)
    sizes = pc.fill_null(pc.binary_length(originals.column("value")), 0).to_pylist()
    paths: list[Path] = []
    for first, end in runs(rows, POSITION[:2]):
        begin = first
        while begin < end:
            if paths:
                context.wait(0)
            count = _count_of_file(sizes[begin : min(begin + limits.dead_letters, end)], limits)
            chunk = originals.slice(begin, count)
            paths.append(_write_file(chunk, reasons[begin : begin + count], context))
            begin += count
    context.meter.failed("dead_letters", records=rows.num_rows)
    return paths


def _count_of_file(sizes: Sequence[int], limits: FileLimits) -> int:
    """Return how many dead letters, by the sizes of their values, go into one file."""
    for count, held in enumerate(accumulate(sizes), start=1):
        if held >= limits.values_bytes:
            return count
    return len(sizes)


def _write_file(rows: pa.Table, reasons: Sequence[Reason], context: SinkContext) -> Path:
    """One file of rows of one partition, in their order and as they lie in the log."""
    path = context.dead_letters / context.sink / f"{_name_of(rows, context)}.ndjson"
    about = {"time": text_now(context.clock), "job": context.job, "sink": context.sink}
    lines = []
    for reason, row in zip(reasons, _rows(rows, context), strict=True):
        why = {"code": reason.code, "status": reason.status, "reason": reason.text}
        lines.append(as_line(about | row | why | {"attempt": reason.attempt}))
    atomic_write(path, b"\n".join(lines) + b"\n", parents=True)
    if context.dead_letter_stream is not None and (
        missed := context.dead_letter_stream.publish(lines)
    ):
        context.meter.count("dead_letters_not_streamed", missed)
    return path


def as_line(dead_letter: Mapping[str, Any]) -> bytes:
    """A dead letter as JSON in one line, without its end.

    Characters stand as they are: escapes would triple a text that is not Latin, and make it too
    large for NATS. Half a character, out of an answer, becomes JSON's escape.
    """
    return json.dumps(dead_letter, ensure_ascii=False).encode(errors="backslashreplace")


def _name_of(rows: pa.Table, context: SinkContext) -> str:
    """Return the file's name, which no other rows have: see the module's docstring."""
    first = rows.select(POSITION).slice(0, 1).to_pylist()[0]
    offsets = rows.column("offset").to_pylist()
    position = context.position_tag(first["stream"], first["partition"], offsets[0])
    name = f"{position}-{offsets[0]:020d}-{offsets[-1]:020d}"
    has_gap = any(after - before != 1 for before, after in pairwise(offsets))
    return f"{name}.{digest_of(offsets)}" if has_gap else name


def _rows(rows: pa.Table, context: SinkContext) -> Iterator[dict[str, Any]]:
    wanted = [name for name in _WANTED if name in rows.column_names]
    for row in rows.select(wanted).to_pylist():
        value = row.pop("value")
        if (key := row.pop("key", None)) is not None:
            row["key_base64"] = base64.b64encode(key).decode()
        row["incarnation"] = context.stream_id(row["stream"], row["partition"], row["offset"])
        yield row | as_text(value)


def as_text(value: bytes | None) -> dict[str, str | None]:
    """A payload as part of a JSON object: `value`, or `value_base64` where it is no text."""
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
