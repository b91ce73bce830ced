"""Streams and partitions as the control protocol shows them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock.logd.fetch.streams import Readable
from penstock.logd.partition import Partition
from penstock.logd.unopened import Unopened


def describe_stream(found: Partition | Unopened, node: str) -> dict[str, Any]:
    """A stream of a lone logd; one that is not open shows no partitions and why."""
    options = asdict(found.stream.config)
    name, subject = options.pop("name"), options.pop("subject")
    if isinstance(found, Partition):
        roles = describe_roles(node, found.epoch, [node], [node])
        partitions = [{"partition": found.number} | describe_standing(found) | roles]
        problem = found.failure
    else:
        partitions, problem = [], found.reason
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
        names = ("start_offset", "high_watermark", "end_offset", "epoch", "size_bytes")
        return dict.fromkeys(names)
    return {
        "start_offset": partition.start_offset,
        "high_watermark": partition.high_watermark,
        "end_offset": partition.log.end_offset,
        "epoch": partition.epoch,
        "size_bytes": partition.log.size_bytes,
    }


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
