"""The wire format over which one node fetches from another.

Integers are little-endian. The follower's node, which dialled, sends requests:

    u32 length          of the request, at most `limits.REPLICATION_REQUEST_SIZE_MAX`
    Request             0 bytes: it has nothing to say, and is still there

The leader's node sends responses:

    u32 head length     of the response, at most `limits.REPLICATION_HEAD_SIZE_MAX`
    u32 frames length   of all frames, at most `limits.REPLICATION_FRAMES_SIZE_MAX`
    Response            a table of parts: partition, answer, bytes of frames
    frames              whole ones (`penstock.logd.format.frame`), as they lie in the leader's log,
    in the
                        order of the parts

The messages are those of `logd/proto/logd_replication.proto`. Which node speaks is known from the
connection, and not said again.
"""

import struct
from typing import Any, Final, NamedTuple, TypeVar, assert_never

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from msgspec import Struct

from penstock.logd.errors import CorruptError
from penstock.logd.intake.dedup import DedupMark
from penstock.logd.limits import (
    REPLICATION_FRAMES_SIZE_MAX,
    REPLICATION_HEAD_SIZE_MAX,
    REPLICATION_REQUEST_SIZE_MAX,
)
from penstock.logd.replication.events import (
    Answer,
    Diverged,
    Fetch,
    Frames,
    NodeId,
    OutOfRange,
    Refusal,
    Refused,
)
from penstock.logd.replication.session import PartitionId, Request
from penstock.logd.wire import logd_replication_pb2 as wire

REQUEST_HEAD: Final = struct.Struct("<I")
RESPONSE_HEAD: Final = struct.Struct("<II")

STILL_HERE: Final = REQUEST_HEAD.pack(0)
"""Request of a follower's node without content, as a sign of life."""

_OFFSET_MAX: Final = 2**63 - 1
"""Offsets and epochs are signed in a frame's header."""

_TO_REASON: Final = {
    wire.REFUSAL_OLDER_EPOCH: Refusal.OLDER_EPOCH,
    wire.REFUSAL_NEWER_EPOCH: Refusal.NEWER_EPOCH,
    wire.REFUSAL_NOT_LEADER: Refusal.NOT_LEADER,
    wire.REFUSAL_NOT_REPLICA: Refusal.NOT_REPLICA,
    wire.REFUSAL_INCARNATION: Refusal.INCARNATION,
}
_FROM_REASON: Final = {reason: number for number, reason in _TO_REASON.items()}

Decoded = TypeVar("Decoded", bound=ProtobufMessage)


class ResponsePart(Struct, frozen=True):
    """One answer, and how many bytes of frames belong to it."""

    key: PartitionId
    answer: Answer
    frames_length: int


class Response(Struct, frozen=True):
    """Everything of a response but its frames."""

    session: int
    number: int
    parts: tuple[ResponsePart, ...]

    @property
    def frames_length(self) -> int:
        """Bytes of all frames."""
        return sum(part.frames_length for part in self.parts)


def encode_request(request: Request) -> bytes:
    """A request, its length included."""
    encoded = wire.Request(
        session=request.session,
        number=request.number,
        taken=request.taken,
        fetches=[_encode_fetch(key, fetch) for key, fetch in request.fetches],
        forgotten=[_encode_key(key) for key in request.forgotten],
    )
    body = encoded.SerializeToString()
    assert len(body) <= REPLICATION_REQUEST_SIZE_MAX, len(body)
    return REQUEST_HEAD.pack(len(body)) + body


def check_request_head(head: bytes) -> int:
    """The length of a request; 0: there is none.

    Raises:
        CorruptError: More than a node may send.
    """
    (length,) = REQUEST_HEAD.unpack(head)
    if length > REPLICATION_REQUEST_SIZE_MAX:
        message = f"a request of {length} bytes; at most {REPLICATION_REQUEST_SIZE_MAX} are taken"
        raise CorruptError(message)
    return int(length)


def decode_request(node: NodeId, body: bytes) -> Request:
    """The request of a node, without its length.

    Raises:
        CorruptError: It is none.
    """
    encoded = _decode(wire.Request, body)
    return Request(
        session=encoded.session,
        number=encoded.number,
        taken=encoded.taken,
        fetches=tuple(_decode_fetch(node, fetch) for fetch in encoded.fetches),
        forgotten=tuple(_decode_key(key) for key in encoded.forgotten),
    )


def encode_response(response: Response) -> bytes:
    """Everything of a response before its frames."""
    encoded = wire.Response(
        session=response.session,
        number=response.number,
        parts=[_encode_part(part) for part in response.parts],
    )
    head = encoded.SerializeToString()
    assert len(head) <= REPLICATION_HEAD_SIZE_MAX, len(head)
    assert response.frames_length <= REPLICATION_FRAMES_SIZE_MAX, response.frames_length
    return RESPONSE_HEAD.pack(len(head), response.frames_length) + head


def check_response_head(head: bytes) -> tuple[int, int]:
    """The lengths of a response's table and of its frames.

    Raises:
        CorruptError: More than a node may send.
    """
    length, frames_length = RESPONSE_HEAD.unpack(head)
    if length > REPLICATION_HEAD_SIZE_MAX or frames_length > REPLICATION_FRAMES_SIZE_MAX:
        message = f"a response of {length} and {frames_length} bytes, which is too much"
        raise CorruptError(message)
    return length, frames_length


def decode_response(body: bytes, frames_length: int) -> Response:
    """The response of these bytes, which announces so many bytes of frames.

    Raises:
        CorruptError: It is none.
    """
    encoded = _decode(wire.Response, body)
    parts = tuple(_decode_part(part) for part in encoded.parts)
    response = Response(encoded.session, encoded.number, parts)
    if response.frames_length != frames_length:
        message = f"a response has {frames_length} bytes of frames, not {response.frames_length}"
        raise CorruptError(message)
    return response


class RangeRequest(NamedTuple):
    """Asks for the frames of a range, from its first on.

    Attributes:
        upto: The offset after the last.
        position: Position of the wanted bytes within the frames.
    """

    key: PartitionId
    first: int
    upto: int
    position: int = 0


def encode_range_request(request: RangeRequest) -> bytes:
    encoded = wire.RangeRequest(
        partition=_encode_key(request.key),
        first=request.first,
        upto=request.upto,
        position=request.position,
    )
    data: bytes = encoded.SerializeToString()
    return data


def decode_range_request(body: bytes) -> RangeRequest:
    """Decode another node's request for a range.

    Raises:
        CorruptError: The range is empty or malformed.
    """
    encoded = _decode(wire.RangeRequest, body)
    if encoded.first >= encoded.upto:
        raise CorruptError(f"a peer asks for the range {encoded.first} to {encoded.upto}")
    _check_bounds(encoded.upto, encoded.position)
    key = _decode_key(encoded.partition)
    return RangeRequest(key, encoded.first, encoded.upto, encoded.position)


class DedupRequest(NamedTuple):
    """Fetches a leader's dedup state of committed records.

    Attributes:
        leader_epoch: Under which it is asked.
        snapshot: Chosen by the follower's node; the pieces of one belong together.
        position: Position of the wanted bytes.
    """

    key: PartitionId
    leader_epoch: int
    snapshot: int
    position: int = 0


def encode_dedup_request(request: DedupRequest) -> bytes:
    encoded = wire.DedupRequest(
        partition=_encode_key(request.key),
        leader_epoch=request.leader_epoch,
        snapshot=request.snapshot,
        position=request.position,
    )
    data: bytes = encoded.SerializeToString()
    return data


def decode_dedup_request(body: bytes) -> DedupRequest:
    """Decode another node's request for dedup state.

    Raises:
        CorruptError: It is malformed.
    """
    encoded = _decode(wire.DedupRequest, body)
    _check_bounds(encoded.leader_epoch, encoded.snapshot, encoded.position)
    key = _decode_key(encoded.partition)
    return DedupRequest(key, encoded.leader_epoch, encoded.snapshot, encoded.position)


def _decode(message: type[Decoded], body: bytes) -> Decoded:
    try:
        return message.FromString(body)
    except DecodeError:
        raise CorruptError(f"a peer's {message.__name__} cannot be decoded") from None


def _check_bounds(*numbers: int) -> None:
    if max(numbers) > _OFFSET_MAX:
        raise CorruptError(f"a peer names an offset or epoch of {max(numbers)}")


def _check_high_watermark(offset: int) -> None:
    if offset < -1:
        raise CorruptError(f"a peer names a high watermark of {offset}")


def _encode_key(key: PartitionId) -> wire.Partition:
    return wire.Partition(incarnation=key.incarnation, number=key.number)


def _decode_key(encoded: wire.Partition) -> PartitionId:
    return PartitionId(encoded.incarnation, encoded.number)


def _encode_fetch(key: PartitionId, fetch: Fetch) -> wire.Fetch:
    return wire.Fetch(
        partition=_encode_key(key),
        boot=fetch.boot,
        number=fetch.number,
        leader_epoch=fetch.leader_epoch,
        offset=fetch.offset,
        last_epoch=fetch.last_epoch,
        synced=fetch.synced,
        whole=fetch.whole,
        wants=fetch.wants,
        known=fetch.known,
        settled=fetch.settled,
        version=fetch.version,
        dedup=_encode_mark(fetch.dedup),
    )


def _decode_fetch(node: NodeId, encoded: wire.Fetch) -> tuple[PartitionId, Fetch]:
    key = _decode_key(encoded.partition)
    _check_bounds(encoded.leader_epoch, encoded.offset, encoded.last_epoch, encoded.synced)
    _check_bounds(encoded.version)
    known = encoded.known if encoded.HasField("known") else None
    if known is not None:
        _check_high_watermark(known)
    fetch = Fetch(
        node=node,
        boot=encoded.boot,
        number=encoded.number,
        incarnation=key.incarnation,
        leader_epoch=encoded.leader_epoch,
        offset=encoded.offset,
        last_epoch=encoded.last_epoch,
        synced=encoded.synced,
        whole=encoded.whole,
        wants=encoded.wants,
        known=known,
        settled=encoded.settled,
        version=encoded.version,
        dedup=_decode_mark(encoded.dedup) if encoded.HasField("dedup") else None,
    )
    return key, fetch


def _encode_mark(mark: DedupMark | None) -> wire.DedupMark | None:
    if mark is None:
        return None
    return wire.DedupMark(offset=mark.offset, checksum=mark.checksum, saved=mark.saved)


def _decode_mark(encoded: wire.DedupMark) -> DedupMark:
    _check_bounds(encoded.offset)
    return DedupMark(encoded.offset, encoded.checksum, saved=encoded.saved)


def _encode_part(part: ResponsePart) -> wire.Part:
    answer = part.answer
    assert isinstance(answer, Frames) or not part.frames_length, answer
    encoded = wire.Part(
        partition=_encode_key(part.key),
        boot=answer.boot,
        number=answer.number,
        leader_epoch=answer.leader_epoch,
        frames_length=part.frames_length,
    )
    match answer:
        case Frames():
            encoded.frames.offset = answer.offset
            encoded.frames.upto = answer.upto
            encoded.frames.high_watermark = answer.high_watermark
            encoded.frames.log_start = answer.log_start
            encoded.frames.catching_up = answer.catching_up
            encoded.frames.dedup_differs = answer.dedup_differs
        case Diverged(epoch=epoch, end_offset=end_offset, log_start=log_start):
            body = wire.Diverged(epoch=epoch, end_offset=end_offset, log_start=log_start)
            encoded.diverged.CopyFrom(body)
        case OutOfRange(log_start=log_start):
            encoded.out_of_range.CopyFrom(wire.OutOfRange(log_start=log_start))
        case Refused(reason=reason):
            encoded.refused.CopyFrom(wire.Refused(reason=_FROM_REASON[reason]))
        case _:
            assert_never(answer)
    return encoded


def _decode_part(encoded: wire.Part) -> ResponsePart:
    key = _decode_key(encoded.partition)
    _check_bounds(encoded.leader_epoch)
    common = {
        "boot": encoded.boot,
        "number": encoded.number,
        "incarnation": key.incarnation,
        "leader_epoch": encoded.leader_epoch,
    }
    kind = encoded.WhichOneof("answer")
    if kind is None:
        raise CorruptError("a peer's answer is of a kind unknown here")
    answer = _ANSWERS[kind](getattr(encoded, kind), common)
    if encoded.frames_length and not isinstance(answer, Frames):
        raise CorruptError(f"a peer sends frames with {kind}")
    return ResponsePart(key, answer, encoded.frames_length)


def _decode_frames(encoded: wire.Frames, common: dict[str, Any]) -> Frames:
    _check_bounds(encoded.offset, encoded.upto, encoded.log_start)
    _check_high_watermark(encoded.high_watermark)
    return Frames(
        offset=encoded.offset,
        upto=encoded.upto,
        high_watermark=encoded.high_watermark,
        log_start=encoded.log_start,
        catching_up=encoded.catching_up,
        dedup_differs=encoded.dedup_differs,
        **common,
    )


def _decode_diverged(encoded: wire.Diverged, common: dict[str, Any]) -> Diverged:
    _check_bounds(encoded.epoch, encoded.end_offset, encoded.log_start)
    return Diverged(
        epoch=encoded.epoch, end_offset=encoded.end_offset, log_start=encoded.log_start, **common
    )


def _decode_out_of_range(encoded: wire.OutOfRange, common: dict[str, Any]) -> OutOfRange:
    _check_bounds(encoded.log_start)
    return OutOfRange(log_start=encoded.log_start, **common)


def _decode_refused(encoded: wire.Refused, common: dict[str, Any]) -> Refused:
    reason = _TO_REASON.get(encoded.reason)
    if reason is None:
        raise CorruptError(f"a peer refuses for a reason unknown here: {encoded.reason}")
    return Refused(reason=reason, **common)


_ANSWERS: Final[dict[str, Any]] = {
    "frames": _decode_frames,
    "diverged": _decode_diverged,
    "out_of_range": _decode_out_of_range,
    "refused": _decode_refused,
}
