"""Commands and snapshots as bytes: every one comes back, and what is not one is refused."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.limits import COMMAND_BYTES_MAX
from penstock.logd.metadata.codec import LaterVersionError
from penstock.logd.metadata.commands import Command, Drain, decode_command, encode_command
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.state import ClusterState
from penstock.logd.metadata.streams import StreamConfig
from tests.support.cluster_state import Cluster, create

COUNTS = st.integers(0, 2**63 - 1)
CONFIGS = st.builds(
    StreamConfig,
    name=st.text(),
    subject=st.text(),
    fsync_interval_ms=COUNTS,
    max_intake_bytes=st.none() | COUNTS,
    retention=st.builds(Retention, age_s=st.none() | COUNTS),
)
st.register_type_strategy(StreamConfig, CONFIGS)
st.register_type_strategy(int, COUNTS)
st.register_type_strategy(
    ReplicationOptions, st.builds(ReplicationOptions, min_isr=st.none() | COUNTS)
)


@given(st.from_type(Command))  # type: ignore[arg-type]  # a union is a type to it
def test_every_command_comes_back(command: Command) -> None:
    data = encode_command(command)
    assert decode_command(data) == command
    assert encode_command(decode_command(data)) == data


def document(**changes: object) -> bytes:
    return orjson.dumps({**orjson.loads(encode_command(Drain(node="a"))), **changes})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "command: not JSON"),
        (b"[]", "command: not a JSON object"),
        (b"{}", "command: version None"),
        (document(version=True), "command: version True"),
        (document(version=0), "command: version 0"),
        (document(kind=1), "command: kind 1"),
        (document(command=[]), "Drain: .* is not an object"),
        (document(command={}), "Drain: fields node are missing"),
        (document(command={"node": 1}), "Drain.node: 1 is not of type str"),
        (document(command={"node": "a", "undo": 0}), "Drain.undo: 0 is not of type bool"),
        (b" " * (COMMAND_BYTES_MAX + 1), "at most"),
    ],
)
def test_what_is_no_command_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        decode_command(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (document(version=2), "command: version 2; upgrade this node"),
        (document(kind="Fly"), "unknown kind 'Fly'"),
        (document(reason="x"), "command: unknown fields reason"),
        (document(command={"node": "a", "at": 1}), "Drain: unknown fields at"),
    ],
)
def test_what_a_later_version_wrote_is_not_guessed_at(data: bytes, message: str) -> None:
    with pytest.raises(LaterVersionError, match=message):
        decode_command(data)


def test_a_field_of_a_later_version_deep_inside_is_not_guessed_at() -> None:
    cluster = Cluster("a", "b", "c")
    command = orjson.loads(encode_command(create("s", ("a", "b", "c"))))
    command["command"]["placements"][0]["weight"] = 1
    with pytest.raises(LaterVersionError, match=r"CreateStream.placements\[0\]: unknown fields"):
        decode_command(orjson.dumps(command))
    cluster.create("s", ("a", "b", "c"))
    snapshot = orjson.loads(cluster.state.snapshot())
    snapshot["streams"][0]["partitions"][0]["colour"] = "red"
    with pytest.raises(LaterVersionError, match="unknown fields colour; upgrade this node"):
        ClusterState.restore(orjson.dumps(snapshot))
    with pytest.raises(LaterVersionError, match="version 2"):
        ClusterState.restore(b'{"version": 2}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b'{"version": "1"}',
        b'{"version": 1}',
        b'{"version": 1, "index": 1, "nodes": {}, "streams": [], "groups": []}',
        b'{"version": 1, "index": 1, "nodes": [], "streams": [{"state": "x"}], "groups": []}',
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match="snapshot of the cluster"):
        ClusterState.restore(data)


def test_an_option_that_is_gone_is_read_over() -> None:
    """0.1.0 wrote it into every command and snapshot."""
    cluster = Cluster("a", "b", "c")
    asked = create("s", ("a", "b", "c"))
    cluster.create("s", ("a", "b", "c"))
    command, snapshot = orjson.loads(encode_command(asked)), orjson.loads(cluster.state.snapshot())
    for options in (command["command"]["options"], snapshot["streams"][0]["options"]):
        options["warm_standby"] = True
    assert decode_command(orjson.dumps(command)) == asked
    assert ClusterState.restore(orjson.dumps(snapshot)).streams == cluster.state.streams


def test_what_means_nothing_new_is_written_as_nodes_of_before_understand_it() -> None:
    """A cluster is upgraded node by node, and streams are made and altered meanwhile."""
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"))
    command = create("s", ("a", "b", "c"))
    for data in (encode_command(command), cluster.state.snapshot()):
        assert b"restore_" not in data
    name = '",\\"restore_from":[],"restore_upto":[]'
    config = replace(command.config, name=name, restore_from=(0,), restore_upto=(5,))
    restored = structs.replace(command, config=config)
    assert decode_command(encode_command(restored)) == restored


def test_a_command_that_is_too_large_is_refused() -> None:
    with pytest.raises(RefusedError) as error:
        encode_command(Drain(node="a" * COMMAND_BYTES_MAX))
    assert error.value.code == "COMMAND_TOO_LARGE"
    with pytest.raises(RefusedError) as error:
        encode_command(Drain(node="\ud800"))
    assert error.value.code == "BAD_TEXT"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_command_or_refused(data: bytes) -> None:
    with pytest.raises((CorruptError, LaterVersionError)):
        decode_command(data)
