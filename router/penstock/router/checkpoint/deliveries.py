"""The journal of what a sink has got: batch by batch, with offsets, time and the routes of then.

    CHECKPOINT_DIR/SINK/deliveries.ndjson

    {"batch": 12, "time_ns": 1795…, "routing": "9c1f…", "ranges": [["logs", "5f2c…", 0, 100, 200]]}

A line is added after a batch is delivered and before Spark notes its end. `ranges` are the offsets
that the batch went over, those of other sinks' records among them: stream, its id, partition, first
offset and the one behind the last. `routing` is `JobConfig.routing_digest`. A batch that comes
again has another line, and the newer one counts. What a crash loses of a line is not known of that
batch; whether it was delivered, Spark's checkpoint says.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.router.checkpoint.journal import KeptLines
from penstock.router.read.offsets import Offsets, StreamPartition, reading_begins

DELIVERIES: Final = "deliveries.ndjson"
"""Name of the journal in a sink's directory."""

BYTES_MAX: Final = 32 * 1024 * 1024
"""Approximate maximum bytes of the journal."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch that a sink has got.

    Attributes:
        batch: Its number in Spark's checkpoint.
        time_ns: Unix time at which it was delivered.
        routing: `JobConfig.routing_digest` of then.
    """

    batch: int
    time_ns: int
    routing: str


class DeliveryJournal:
    """The journal of one sink, for its query.

    Args:
        routing: `JobConfig.routing_digest`.
    """

    def __init__(self, state_dir: Path, routing: str) -> None:
        self._path = state_dir / DELIVERIES
        self._routing = routing
        self._lines: KeptLines | None = None

    def note(self, batch: int, time_ns: int, before: Offsets, planned: Offsets) -> None:
        """A batch between two positions is delivered."""
        ranges = []
        for at, end in sorted(planned.next.items()):
            begin = reading_begins(at, before, planned)
            if begin < end:
                stream_id = planned.stream_ids.get(at.stream, "")
                ranges.append([at.stream, stream_id, at.partition, begin, end])
        if self._lines is None:
            self._lines = KeptLines(self._path, max_bytes=BYTES_MAX)
        document = {"batch": batch, "time_ns": time_ns, "routing": self._routing, "ranges": ranges}
        self._lines.add(json.dumps(document, separators=(",", ":")))


RecordPosition = tuple[StreamPartition, int]
"""A partition and an offset."""


def deliveries_of(
    state_dir: Path, wanted: Sequence[RecordPosition], stream_ids: dict[str, str]
) -> dict[RecordPosition, Delivery]:
    """Return the newest delivery that went over each offset, of those that the journal still has.

    Raises:
        OSError: The journal cannot be read.
    """
    left, found = dict[StreamPartition, list[int]](), dict[RecordPosition, Delivery]()
    for at, offset in sorted(set(wanted)):
        left.setdefault(at, []).append(offset)
    path = state_dir / DELIVERIES
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in reversed(lines):
        if not any(left.values()):
            break
        try:
            document: dict[str, Any] = json.loads(line)
            delivery = Delivery(
                int(document["batch"]), int(document["time_ns"]), str(document["routing"])
            )
            ranges = [
                (StreamPartition(stream, int(partition)), stream_id, int(begin), int(end))
                for stream, stream_id, partition, begin, end in document["ranges"]
            ]
        except (ValueError, KeyError, TypeError):  # torn by a crash
            continue
        for at, stream_id, begin, end in ranges:
            offsets = left.get(at, [])
            if not offsets or stream_ids.get(at.stream, "") != stream_id:
                continue
            first, upto = bisect_left(offsets, begin), bisect_left(offsets, end)
            found |= dict.fromkeys(((at, it) for it in offsets[first:upto]), delivery)
            del offsets[first:upto]
    return found
