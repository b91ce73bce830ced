"""Streams of a cluster as a client shows them: put together from what several nodes say."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.logd.client import PartitionInfo, StreamInfo
from penstock.logd.client.models import Described, cluster_info, leaders_elsewhere, merge
from penstock.logd.errors import HaltCause


def part(leader: str | None, **standing: int) -> PartitionInfo:
    names = ("start_offset", "high_watermark", "end_offset", "epoch", "size_bytes")
    known: dict[str, Any] = dict.fromkeys(names, -1) | standing
    return PartitionInfo(partition=0, leader=leader, **known)


def stream(*parts: PartitionInfo) -> StreamInfo:
    return StreamInfo(name="s", subject="t", incarnation="i", partitions=parts, options={})


def test_a_partition_stands_where_its_leader_says() -> None:
    here = Described("a", [stream(part("b", start_offset=0, high_watermark=3))])
    assert leaders_elsewhere(here) == ["b"]
    assert leaders_elsewhere(Described("b", here.streams)) == []
    there = Described("b", [stream(part("b", start_offset=2, high_watermark=7))])
    (merged,) = merge(here, [there])
    assert (merged.partitions[0].start_offset, merged.partitions[0].high_watermark) == (2, 7)
    failed = replace(there.streams[0], problem="disk full")
    (merged,) = merge(
        Described("a", [replace(here.streams[0], problem="x")]), [Described("b", [failed])]
    )
    assert merged.problem == "x; b: disk full"
    (merged,) = merge(Described("c", [stream(part("b"))]), [])
    assert not merged.partitions[0].is_known


@pytest.mark.parametrize(
    ("told", "cause", "standing"),
    [
        ({"problem": "", "problem_cause": None}, None, "active"),
        ({"problem": "x", "problem_cause": "DATA_LOST"}, HaltCause.DATA_LOST, "refused: data lost"),
        ({"problem": "data lost: x", "problem_cause": "STORAGE_FAILED"},
         HaltCause.STORAGE_FAILED, "halted"),
        ({"problem": "x", "problem_cause": "LATER"}, HaltCause.UNKNOWN, "halted"),
        # Releases before had the reason alone.
        ({}, None, "active"),
        ({"problem": ""}, None, "active"),
        ({"problem": "data lost: its disk lacks 3"}, HaltCause.DATA_LOST, "refused: data lost"),
        ({"problem": "the disk failed"}, HaltCause.UNKNOWN, "halted"),
    ],
)  # fmt: skip
def test_why_a_node_takes_no_part_is_a_code_and_no_sentence(
    told: dict[str, Any], cause: HaltCause | None, standing: str
) -> None:
    document = {"node": "a", "fetch": "a:1", "admin": "", "state": "active"} | told
    (node,) = cluster_info({"cluster": "c", "node": "a", "nodes": [document]}).nodes
    assert (node.problem_cause, node.standing) == (cause, standing)
