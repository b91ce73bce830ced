"""Streams and partitions as the control protocol shows them."""

from collections.abc import Sequence
from typing import Any

from penstock.logd.api.streams import Readable


def describe_standing(partition: Readable | None) -> dict[str, Any]:
    """Where a partition stands here; None: it has no replica here."""
    if partition is None:
        return dict.fromkeys(
            (
                "start_offset",
                "high_watermark",
                "end_offset",
                "epoch",
                "size_bytes",
                "damaged_offsets",
            )
        )
    return {
        "start_offset": partition.start_offset,
        "high_watermark": partition.high_watermark,
        "end_offset": partition.log.end_offset,
        "epoch": partition.epoch,
        "size_bytes": partition.log.size_bytes,
        "damaged_offsets": sum(upto - first for first, upto in damaged_ranges(partition)),
    }


def damaged_ranges(partition: Readable) -> list[tuple[int, int]]:
    """Ranges [first, upto) of a partition's offsets that are known to be damaged here."""
    start = partition.start_offset
    return [(max(a, start), upto) for a, upto in partition.log.damaged() if upto > start]


def describe_roles(
    leader: str | None,
    leader_epoch: int,
    replicas: Sequence[str],
    isr: Sequence[str],
    observers: Sequence[str] = (),
    target: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Who has a partition, and who is to."""
    return {
        "leader": leader,
        "leader_epoch": leader_epoch,
        "replicas": list(replicas),
        "isr": list(isr),
        "observers": list(observers),
        "target": None if target is None else list(target),
    }
