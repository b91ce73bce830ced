"""Raft messages as bytes: protobuf, as `logd/proto/logd_raft.proto` describes it.

The core knows nothing of it. The transport takes messages of up to `limits.PEER_FRAME_SIZE_MAX`;
`RaftConfig` bounds what goes into one: `append_bytes_max`, or one entry of `entry_bytes_max`, or
`snapshot_chunk_bytes`.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError

from penstock.logd.errors import CorruptError
from penstock.logd.raft import Entry, EntryKind, Membership, Message
from penstock.logd.raft.messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Body,
    Heartbeat,
    HeartbeatResponse,
    ReadRequest,
    ReadResponse,
    SnapshotChunk,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from penstock.logd.replication.events import NodeId
from penstock.logd.wire import logd_raft_pb2 as wire


def encode_message(message: Message) -> bytes:
    """The bytes of a message."""
    field, body = _encode_body(message.body)
    encoded = wire.Message(
        group=message.group,
        sender=message.sender,
        recipient=message.recipient,
        term=message.term,
        disk=message.disk,
        recipient_disk=message.recipient_disk,
        **{field: body},
    )
    data: bytes = encoded.SerializeToString()
    return data


def decode_message(data: bytes) -> Message:
    """The message of these bytes.

    Raises:
        CorruptError: They are not those of a message that this version knows; the sender is a
            later version, or not one of ours.
    """
    try:
        encoded = wire.Message.FromString(data)
    except DecodeError as error:
        raise CorruptError(f"no Raft message: {error}") from error
    field = encoded.WhichOneof("body")
    if field is None:
        raise CorruptError("a Raft message without a body that this version knows")
    try:
        body = DECODERS[field](getattr(encoded, field))
    except ValueError as error:
        raise CorruptError(f"a Raft message of a kind unknown here: {error}") from error
    sender, recipient = NodeId(encoded.sender), NodeId(encoded.recipient)
    disk, recipient_disk = encoded.disk, encoded.recipient_disk
    return Message(encoded.group, sender, recipient, encoded.term, body, disk, recipient_disk)


def _encode_body(body: Body) -> tuple[str, Any]:  # noqa: C901, PLR0911, PLR0912 - one line a kind
    match body:
        case VoteRequest():
            return "vote_request", wire.VoteRequest(**_fields(body))
        case VoteResponse():
            return "vote_response", wire.VoteResponse(**_fields(body))
        case AppendRequest():
            entries = [wire.Entry(**_fields(entry)) for entry in body.entries]
            return "append_request", wire.AppendRequest(**_fields(body) | {"entries": entries})
        case AppendResponse():
            return "append_response", wire.AppendResponse(**_fields(body))
        case AppendRejection():
            return "append_rejection", wire.AppendRejection(**_fields(body))
        case Heartbeat():
            return "heartbeat", wire.Heartbeat(**_fields(body))
        case HeartbeatResponse():
            return "heartbeat_response", wire.HeartbeatResponse(**_fields(body))
        case SnapshotChunk(membership=membership):
            fields = _fields(body) | {"membership": membership.encode()}
            return "snapshot_chunk", wire.SnapshotChunk(**fields)
        case SnapshotResponse():
            return "snapshot_response", wire.SnapshotResponse(**_fields(body))
        case ReadRequest():
            return "read_request", wire.ReadRequest(**_fields(body))
        case ReadResponse():
            return "read_response", wire.ReadResponse(**_fields(body))
        case TimeoutNow():
            return "timeout_now", wire.TimeoutNow()


def _fields(body: Body | Entry) -> dict[str, Any]:
    """A body's attributes; those of the protobuf message have the same names."""
    return {name: getattr(body, name) for name in body.__struct_fields__}


def _plain(kind: type[Any]) -> Callable[[Any], Body]:
    """A decoder for bodies whose fields are numbers and flags."""
    return lambda encoded: kind(*(getattr(encoded, name) for name in kind.__struct_fields__))


def _append_request(encoded: Any) -> Body:
    entries = tuple(Entry(e.index, e.term, EntryKind(e.kind), e.data) for e in encoded.entries)
    first = encoded.previous_index + 1
    if any(entry.index != first + number for number, entry in enumerate(entries)):
        raise CorruptError("entries of a Raft message do not follow on each other")
    return AppendRequest(encoded.previous_index, encoded.previous_term, entries, encoded.commit)


def _snapshot_chunk(encoded: Any) -> Body:
    return SnapshotChunk(
        index=encoded.index,
        index_term=encoded.index_term,
        membership=Membership.decode(encoded.membership),
        total_bytes=encoded.total_bytes,
        offset=encoded.offset,
        data=encoded.data,
    )


DECODERS: Final[dict[str, Callable[[Any], Body]]] = {
    "vote_request": _plain(VoteRequest),
    "vote_response": _plain(VoteResponse),
    "append_request": _append_request,
    "append_response": _plain(AppendResponse),
    "append_rejection": _plain(AppendRejection),
    "heartbeat": _plain(Heartbeat),
    "heartbeat_response": _plain(HeartbeatResponse),
    "snapshot_chunk": _snapshot_chunk,
    "snapshot_response": _plain(SnapshotResponse),
    "read_request": _plain(ReadRequest),
    "read_response": _plain(ReadResponse),
    "timeout_now": _plain(TimeoutNow),
}
