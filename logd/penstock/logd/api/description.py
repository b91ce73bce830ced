"""Streams and partitions as the control protocol shows them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock.logd.api.streams import Readable
from penstock.logd.partition.partition import OfflinePartition, Partition


def describe_stream(found: Partition | OfflinePartition, node: str) -> dict[str, Any]:
    """A stream of a lone logd; one that is not open has no leader, and says why."""
    options = asdict(found.stream.config)
    name, subject = options.pop("name"), options.pop("subject")
    if isinstance(found, Partition):
        roles = describe_roles(node, found.epoch, [node], [node])
        partitions = [{"partition": found.number} | describe_standing(found) | roles]
        problem = found.failure
    else:
        roles = describe_roles(None, 0, [node], [])
        partitions = [{"partition": 0} | describe_standing(None) | roles]
        problem = found.reason
    return {
        "name": name,
        "subject": subject,
        "incarnation": found.stream.incarnation,
        "partitions": partitions,
        "options": options,
        "problem": problem,
    }


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
