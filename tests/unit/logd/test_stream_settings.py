"""Streams' settings out of requests: one level of keys, and what may be changed of them."""

from typing import Any

import pytest

from penstock.logd.errors import RefusedError
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.stream_options import ReplicationSettings, altered, parse, split_settings

LOGS = StreamConfig(name="logs", subject="t.>", retention=Retention(age_s=60, messages=5))
THREE = ReplicationOptions(replication_factor=3, min_isr=2)


def test_settings_are_split_into_what_a_stream_is_and_how_it_is_replicated() -> None:
    document = {"name": "logs", "subject": "t.>", "fsync": "never", "partitions": 4, "min_isr": 2}
    config, replication = split_settings(document)
    assert config == StreamConfig(name="logs", subject="t.>", fsync="never")
    assert replication.partitions == 4
    assert replication.options(factor=3) == THREE


@pytest.mark.parametrize(("asked", "count"), [(None, 3), (2, 2), ("all", 0)])
def test_a_replication_factor_is_given_or_left_to_the_cluster(asked: Any, count: int) -> None:
    document = {"name": "logs", "subject": "t.>", "replication_factor": asked}
    assert split_settings(document)[1].options(factor=3).replication_factor == count


def test_only_what_is_named_is_changed() -> None:
    changes = {"retention": {"messages": 7}, "read_only": True}
    config, options = altered(LOGS, THREE, changes)
    assert config.retention == Retention(age_s=60, messages=7)
    assert options == ReplicationOptions(replication_factor=3, min_isr=2, read_only=True)
    assert altered(LOGS, ReplicationOptions(replication_factor=0), {})[1].replication_factor == 0
    assert altered(LOGS, THREE, {"replication_factor": 5})[1].replication_factor == 5
    assert altered(LOGS, THREE, {"min_isr": None})[1].min_isr is None


@pytest.mark.parametrize(
    "changes",
    [{"partitions": 2}, {"subject": "u.>"}, {"colour": 1}, {"min_isr": 0}, {"fsync": "maybe"}],
)
def test_what_cannot_be_changed_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        altered(LOGS, THREE, changes)
    assert refused.value.code == "BAD_REQUEST"
    assert refused.value.detail["key"] == next(iter(changes))


def test_a_restore_can_be_ended_and_not_moved() -> None:
    config = StreamConfig(name="logs", subject="t.>", restore_from=(5, 0), restore_upto=(9, 3))
    assert altered(config, THREE, {"restore_upto": None})[0].restore_upto == (5, 0)
    assert altered(config, THREE, {"fsync": "never"})[0].restore_upto == (9, 3)
    others: list[dict[str, Any]] = [
        {"restore_upto": [7, 3]}, {"restore_upto": []}, {"restore_from": None}
    ]  # fmt: skip
    for wanted in others:
        with pytest.raises(RefusedError):
            altered(config, THREE, wanted)
    with pytest.raises(RefusedError, match="made of a backup"):
        altered(LOGS, THREE, {"restore_upto": None})


def test_a_number_out_of_range_is_refused_in_the_words_of_a_configuration() -> None:
    with pytest.raises(RefusedError, match="partitions: must be greater than or equal to 1"):
        parse(ReplicationSettings, {"partitions": 0})
