"""The wire format between two nodes.

Integers are little-endian. Both directions carry frames:

    u32 length   of the body, at most `limits.PEER_FRAME_SIZE_MAX`
    u8  kind     what the body is
    body         a message of `logd/proto`, or of Raft's codec

| kind | | from | body |
|---|---|---|---|
| 1 | HELLO | dialer, first | `Hello` |
| 2 | WELCOME | listener, first | `Welcome` |
| 3 | REFUSED | listener, instead; then it closes | `Refused` |
| 4 | RAFT | dialer | one Raft message; it may be lost, and is never answered |
| 5 | REQUEST | dialer | `Request` |
| 6 | ANSWER | listener | `Answer` to the request of that id, in any order |

Nodes dial one another: what A has to say to B goes over the connection that A dialled. After
WELCOME to a Hello with the purpose REPLICATION the connection speaks
`penstock.logd.cluster.replication.wire` instead.
"""

import struct
from enum import IntEnum
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from penstock.logd.errors import CorruptError
from penstock.logd.limits import PEER_FRAME_SIZE_MAX
from penstock.logd.net.channel import Channel

PROTOCOL_VERSION: Final = 1
"""Version of the dialer; nodes of one cluster may differ by one while it is upgraded."""

UNACKED_S: Final = 5.0
"""Seconds a node's kernel may leave what was sent unacknowledged before the connection is given up.
Without, one that was cut off comes back only with TCP's next try, which may be minutes away."""

AHEAD_MAX: Final = PEER_FRAME_SIZE_MAX + 64 * 1024
"""Bytes of a connection that may have been received and not taken: the greatest frame, and more."""

_HEAD: Final = struct.Struct("<IB")

Decoded = TypeVar("Decoded", bound=Message)


class Kind(IntEnum):
    """Type of a frame's body."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    RAFT = 4
    REQUEST = 5
    ANSWER = 6


def encode_frame(kind: Kind, body: bytes) -> bytes:
    """A frame, its head included; `body` is at most `PEER_FRAME_SIZE_MAX` bytes."""
    assert len(body) <= PEER_FRAME_SIZE_MAX, (kind, len(body))
    return _HEAD.pack(len(body), kind) + body


async def receive_frame(
    channel: Channel, *, size_max: int = PEER_FRAME_SIZE_MAX
) -> tuple[Kind, bytes]:
    """Receive a frame, however long that takes.

    Args:
        channel: Channel from the peer.
        size_max: Bytes of its body.

    Raises:
        CorruptError: The other side does not speak this protocol.
        EOFError, OSError: As `Channel.receive`.
    """
    kind, length = _check_head(*_HEAD.unpack(await channel.receive(_HEAD.size)), size_max=size_max)
    return kind, await channel.receive(length)


def next_frame(data: bytearray, position: int) -> tuple[Kind, bytes, int] | None:
    """The frame that begins there, and where it ends; None: it has not come whole yet.

    Raises:
        CorruptError: The other side does not speak this protocol.
    """
    begin = position + _HEAD.size
    if begin > len(data):
        return None
    kind, length = _check_head(*_HEAD.unpack_from(data, position), size_max=PEER_FRAME_SIZE_MAX)
    end = begin + length
    return None if end > len(data) else (kind, bytes(data[begin:end]), end)


def _check_head(length: int, kind: int, *, size_max: int) -> tuple[Kind, int]:
    try:
        known = Kind(kind)
    except ValueError:
        raise CorruptError(f"a peer sends a frame of unknown kind {kind}: no logd?") from None
    if length > size_max:
        raise CorruptError(f"a peer announces {length} bytes; at most {size_max} are taken")
    return known, length


def decode(message: type[Decoded], body: bytes) -> Decoded:
    """Decode the message of a body.

    Raises:
        CorruptError: It is none.
    """
    try:
        return message.FromString(body)
    except DecodeError:
        raise CorruptError(f"a peer's {message.__name__} cannot be decoded") from None
