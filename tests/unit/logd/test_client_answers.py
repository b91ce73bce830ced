"""Streams of a cluster as a client shows them: put together from what several nodes say."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.logd.api.models import ClusterInfo, StreamList
from penstock.logd.client import PartitionInfo, StreamInfo, calls
from penstock.logd.client.results import leaders_elsewhere, merge
from penstock.logd.errors import HaltCause


def part(leader: str | None, **standing: int) -> PartitionInfo:
    names = ("start_offset", "high_watermark", "end_offset", "epoch", "size_bytes")
    known: dict[str, Any] = dict.fromkeys(names, -1) | standing
    return PartitionInfo(partition=0, leader=leader, **known)


def stream(*parts: PartitionInfo) -> StreamInfo:
    return StreamInfo(name="s", subject="t", incarnation="i", partitions=parts, options={})


def test_a_partition_stands_where_its_leader_says() -> None:
    here = StreamList("a", [stream(part("b", start_offset=0, high_watermark=3))])
    assert leaders_elsewhere(here) == ["b"]
    assert leaders_elsewhere(StreamList("b", here.streams)) == []
    there = StreamList("b", [stream(part("b", start_offset=2, high_watermark=7))])
    (merged,) = merge(here, [there])
    assert (merged.partitions[0].start_offset, merged.partitions[0].high_watermark) == (2, 7)
    failed = replace(there.streams[0], problem="disk full")
    (merged,) = merge(
        StreamList("a", [replace(here.streams[0], problem="x")]), [StreamList("b", [failed])]
    )
    assert merged.problem == "x; b: disk full"
    (merged,) = merge(StreamList("c", [stream(part("b"))]), [])
    assert not merged.partitions[0].is_known


REFUSED = {"replicas": ("a", "b"), "isr": ("a", "b"), "refusal": "the disk is full"}


@pytest.mark.parametrize(
    ("facts", "options", "state"),
    [
        (REFUSED, {}, "refusing"),
        (REFUSED | {"isr": ("a",)}, {}, "refusing"),
        (REFUSED | {"refusal": ""}, {}, "ok"),
        (REFUSED | {"refusal": "", "isr": ("a",)}, {}, "degraded"),
        (REFUSED | {"damaged_offsets": 1}, {}, "damaged"),
        (REFUSED | {"leader": None}, {}, "leaderless"),
        (REFUSED, {"paused": True}, "paused"),
        (REFUSED, {"read_only": True}, "read-only"),
    ],
)
def test_a_state_says_what_publishers_meet(
    facts: dict[str, Any], options: dict[str, Any], state: str
) -> None:
    found = replace(part("b", start_offset=0), **facts)
    there = StreamList("b", [replace(stream(found), options=options)])
    unknown = replace(found, refusal="", start_offset=-1)
    here = StreamList("a", [replace(stream(unknown), options=options)])
    (merged,) = merge(here, [there])
    assert merged.state_of(merged.partitions[0]) == state


def test_what_a_node_of_an_earlier_release_does_not_know_of_a_partition_is_not_known() -> None:
    unknown = dict.fromkeys(("start_offset", "high_watermark", "end_offset", "epoch", "size_bytes"))
    described = {"name": "s", "subject": "t", "incarnation": "i", "options": {}}
    header = {"node": "a", "streams": [described | {"partitions": [{"partition": 0} | unknown]}]}
    (found,) = calls.describe().answer(header, memoryview(b""), "a:1").streams
    assert not found.partitions[0].is_known
    assert found.partitions[0].damaged_offsets == -1


@pytest.mark.parametrize(
    ("told", "cause", "standing"),
    [
        ({"problem": "", "problem_cause": None}, None, "active"),
        ({"problem": "x", "problem_cause": "DATA_LOST"}, HaltCause.DATA_LOST, "refused: data lost"),
        ({"problem": "data lost: x", "problem_cause": "STORAGE_FAILED"},
         HaltCause.STORAGE_FAILED, "halted"),
        ({"problem": "x", "problem_cause": "LATER"}, HaltCause.UNKNOWN, "halted"),
        ({"of_a_later_logd": 1}, None, "active"),
        # 0.1.0 had the reason alone.
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
    answer = {"id": 1, "cluster": "c", "controller": None, "node": "a", "nodes": [document]}
    (node,) = msgspec.convert(answer, ClusterInfo).nodes
    assert (node.cause, node.standing) == (cause, standing)
