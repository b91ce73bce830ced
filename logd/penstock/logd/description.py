"""Streams and partitions as the control protocol shows them."""

from dataclasses import asdict
from typing import Any

from penstock.logd.partition import Partition
from penstock.logd.unopened import Unopened


def describe_stream(found: Partition | Unopened) -> dict[str, Any]:
    """A stream; one that is not open shows no partitions and why."""
    options = asdict(found.stream.config)
    name, subject = options.pop("name"), options.pop("subject")
    if isinstance(found, Partition):
        partitions, problem = [describe_partition(found)], found.failure
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


def describe_partition(partition: Partition) -> dict[str, Any]:
    """Where a partition stands."""
    return {
        "partition": partition.number,
        "start_offset": partition.log.start_offset,
        "high_watermark": partition.high_watermark,
        "end_offset": partition.log.end_offset,
        "epoch": partition.epoch,
        "size_bytes": partition.log.size_bytes,
    }
