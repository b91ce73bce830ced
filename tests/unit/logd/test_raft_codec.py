"""Raft messages survive the wire; foreign bytes are refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError
from penstock.logd.limits import PEER_FRAME_SIZE_MAX
from penstock.logd.raft import Entry, EntryKind, Message, RaftConfig, membership_of
from penstock.logd.raft import messages as m
from penstock.logd.raft.codec import DECODERS, decode_message, encode_message
from penstock.logd.replication.events import NodeId
from penstock.logd.wire import logd_raft_pb2

NUMBER = st.integers(0, 2**64 - 1)

memberships = st.just(membership_of("abc"))


def _appends(previous: int, kinds: list[EntryKind], data: bytes) -> m.AppendRequest:
    entries = tuple(Entry(previous + n, 7, kind, data) for n, kind in enumerate(kinds, 1))
    return m.AppendRequest(previous, 6, entries, previous)


bodies = st.one_of(
    st.builds(m.VoteRequest, st.booleans(), st.booleans(), NUMBER, NUMBER),
    st.builds(m.VoteResponse, st.booleans(), st.booleans()),
    st.builds(_appends, st.integers(0, 2**63), st.lists(st.sampled_from(EntryKind)), st.binary()),
    st.builds(m.AppendResponse, NUMBER),
    st.builds(m.AppendRejection, NUMBER, NUMBER, NUMBER),
    st.builds(m.Heartbeat, NUMBER, NUMBER),
    st.builds(m.HeartbeatResponse, NUMBER),
    st.builds(m.SnapshotChunk, NUMBER, NUMBER, memberships, NUMBER, NUMBER, st.binary()),
    st.builds(m.SnapshotResponse, NUMBER, NUMBER),
    st.builds(m.ReadRequest, NUMBER),
    st.builds(m.ReadResponse, NUMBER, NUMBER),
    st.builds(m.TimeoutNow),
)
messages = st.builds(
    Message,
    st.text(),
    st.text().map(NodeId),
    st.text().map(NodeId),
    NUMBER,
    bodies,
    disk=st.text(),
    recipient_disk=st.text(),
)


@given(messages)
def test_message_survives_the_wire(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=200))
def test_bytes_are_decoded_or_refused(data: bytes) -> None:
    assert_decoded_or_refused(data)


def assert_decoded_or_refused(data: bytes) -> None:
    message = None
    with suppress(CorruptError):
        message = decode_message(data)
    assert message is None or decode_message(encode_message(message)) == message


@given(messages, st.data())
def test_changed_bytes_are_decoded_or_refused(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode_message(message))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    assert_decoded_or_refused(bytes(encoded))


def test_every_body_of_the_format_is_decoded() -> None:
    fields = logd_raft_pb2.Message.DESCRIPTOR.oneofs_by_name["body"].fields
    assert {field.name for field in fields} == set(DECODERS)


def test_message_of_a_later_version_is_refused() -> None:
    later = logd_raft_pb2.Message(group="g", sender="a", recipient="b", term=1)
    with pytest.raises(CorruptError, match="without a body that this version knows"):
        decode_message(later.SerializeToString())


def test_entries_with_a_gap_are_refused() -> None:
    gap = logd_raft_pb2.Message(
        append_request=logd_raft_pb2.AppendRequest(entries=[logd_raft_pb2.Entry(index=5)])
    )
    with pytest.raises(CorruptError, match="do not follow"):
        decode_message(gap.SerializeToString())


def test_messages_of_the_default_settings_fit_between_peers() -> None:
    config = RaftConfig(node=NodeId("n" * 64), group="g" * 64)
    largest = max(config.append_bytes_max, config.entry_bytes_max)
    entry = Entry(2**63, 2**63, EntryKind.COMMAND, bytes(largest))
    append = m.AppendRequest(2**63 - 1, 2**63, (entry,), 2**63)
    chunk = m.SnapshotChunk(
        2**63, 2**63, membership_of("abc"), 2**40, 2**40, bytes(config.snapshot_chunk_bytes)
    )
    for body in (append, chunk):
        message = Message(config.group, config.node, config.node, 2**63, body)
        assert len(encode_message(message)) < PEER_FRAME_SIZE_MAX // 2
