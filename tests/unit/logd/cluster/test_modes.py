"""Streams that are paused, held, woken, made read-only and altered."""

from dataclasses import replace

import pytest
from msgspec import structs

from penstock.logd.metadata.commands import AlterStream, SetStreamMode, WakeStream
from penstock.logd.metadata.records import PartitionKey
from penstock.logd.metadata.tables import Done
from tests.support.cluster_state import Cluster


@pytest.fixture
def cluster() -> Cluster:
    """A stream on three nodes."""
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"))
    return cluster


def test_modes_and_options_are_changed(cluster: Cluster) -> None:
    stream = cluster.stream()
    mode = SetStreamMode(stream="s", incarnation=stream.incarnation, paused=True)
    keys = tuple(PartitionKey("s", number) for number in range(len(stream.partitions)))
    assert cluster.apply(mode) == Done(incarnation=stream.incarnation, partitions=keys)
    assert cluster.apply(mode) == Done(changed=False, incarnation=stream.incarnation)
    later = cluster.stream().partitions[0].version
    assert later == stream.partitions[0].version + 1, "its replicas are to see it"
    assert cluster.code(structs.replace(mode, paused=None, read_only=True)) == ""
    assert (cluster.stream().options.paused, cluster.stream().options.read_only) == (True, True)
    alter = AlterStream(
        config=replace(stream.config, compact=True),
        options=replace(stream.options, unclean_election=True),
        incarnation=stream.incarnation,
    )
    assert cluster.code(alter) == ""
    assert cluster.stream().config.compact
    assert not cluster.stream().options.paused
    bound = structs.replace(alter, config=replace(alter.config, subject="other"))
    assert cluster.code(bound) == "STREAM_DIFFERS"


def test_a_paused_stream_is_woken_unless_it_is_held(cluster: Cluster) -> None:
    stream = cluster.stream()
    mode = SetStreamMode(stream="s", incarnation=stream.incarnation, paused=True)
    wake = WakeStream(stream="s", incarnation=stream.incarnation)
    idle = Done(changed=False, incarnation=stream.incarnation)
    assert cluster.apply(wake) == idle, "it is awake"
    cluster.apply(mode)
    assert cluster.stream().options.listens
    assert cluster.apply(wake) != idle
    assert not cluster.stream().options.paused
    cluster.apply(structs.replace(mode, held=True))
    assert not cluster.stream().options.listens
    assert cluster.apply(wake) == idle
    assert cluster.stream().options.held
    cluster.apply(structs.replace(mode, paused=False))
    assert cluster.stream().options == stream.options
    held = replace(stream.options, held=True)
    alter = AlterStream(config=stream.config, options=held, incarnation=stream.incarnation)
    assert cluster.code(alter) == "BAD_OPTIONS"
