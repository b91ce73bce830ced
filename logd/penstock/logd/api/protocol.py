"""The framed TCP protocol of fetch and control requests, as both ends speak it.

Integers are little-endian. A connection carries any number of requests at a time, up to the limits
of the server; responses come whole, in the order in which they become ready, and say by `id` what
they answer. An `id` is the client's choice; 0, the default, is also that of a refusal which is
about the connection and ends it. A client that closes its side, or takes nothing for too long,
loses what it has asked for.

    request    u32 length         of the JSON, at most `limits.REQUEST_SIZE_MAX`
               JSON               {"api": "fetch", "id": 1, ...}
               frame              of an operation that uploads: as many bytes as `upload` says
    response   u32 header length  of the JSON
               u64 payload length
               JSON               {"id": 1, ...} or {"id": 1, "error": {"code", "message", ...}}
               payload            whole frames (`penstock.logd.format.frame`), of a fetch

What each operation asks and answers: `penstock.logd.api.operations`, and
`docs/reference/operations.md`, which is generated from it.

`start_offset` is the first record that can be read, `high_watermark` the last (-1: none),
`end_offset` the next one to be written. `next_offset` is where a reader goes on: without a subject
filter the offset after the payload's last record; with one, the offset after the last record looked
at, so that a reader passes records that do not match. A fetch with a filter looks at no more than
`bytes_max` bytes; it answers when something matches, when it has looked at those, or when its wait
is over, and does not heed `bytes_min`. Without a filter, less than `bytes_min` is answered at once
when there is more than fits into `bytes_max`.

`cancel` ends a fetch's wait: it is answered with what there is, and no longer counts as under way.
Of a request that is not there any more, or does not wait, nothing is said.

A connection is anonymous, or the principal of its client certificate, until a request
`authenticate` says otherwise; requests after that are made by the principal that the answer names.
A client that must be known and is not, or no longer, gets `UNAUTHENTICATED` with a `reason`; a
connection that says nothing for 10 seconds, or is wrong three times, is closed.

A stream's description has `problem`, why it takes no writes, empty while it does. A request for
records of one whose log cannot be opened is refused as `UNAVAILABLE` with a `cause`: `CORRUPT`, the
code of a refusal such as `WRONG_KEY`, or `UNAVAILABLE`. Each of its `partitions` has `leader`
(null: none), `leader_epoch`, `replicas` (the first one leads if it can), `isr`, `observers`,
`target` (the replicas that a move ends with; null: none is under way), `unclean_elections`,
`refusal` (why its leader refuses all publishers, as that says; empty: it takes them), and where it
stands at the node that answers: start_offset, high_watermark, end_offset, epoch,
size_bytes, damaged_offsets (known there), all -1 where that node has no replica. On a single node
all of these names are its own.

Of a cluster's `nodes` each has `node`, `fetch` and `admin` (addresses), `rack`, `state` ("active",
"draining" or "removed"), `live`, `problem`, why it takes no part though its process runs, and
`problem_cause`, the code of that (`penstock.logd.errors.HaltCause`; null: it takes part).

Any node answers any request, but for records, offsets and cursors: what it does not have it refuses
as `NOT_HERE`, with the `leader` to ask (empty: none) and the `replicas`, joined by commas. One that
has just started, or takes no part, refuses as `NOT_READY`; others know more. Cursors are at the
leader of `__cursors`. A node alone answers all of this as well.

`log_epoch` is the last epoch in the log that was read. A reader that hands it in with its next
fetch is refused as `RECORDS_LOST`, with the `offset` from which on, when an unclean election has
cost records that it had read.

A fetch with `replica` is answered by any replica, up to the high watermark it knows of. So it may
refuse as `OUT_OF_RANGE` what the leader has. So may a new leader, of an offset up to `end_offset`:
the one before showed it to readers, and this one does not know yet that it is committed.

A stream that is made with `restore_from` and `restore_upto`, offsets by partition, begins at the
first and refuses publishers as `READ_ONLY` until `restore` has brought every frame below the
second: whole frames as they were fetched elsewhere, one after the other, each at the offset it was
at. Its producers' sequences and message ids count, its epochs do not. A frame that is not wanted
next is refused as `WRONG_OFFSET` with the `next_offset` that is, one at or beyond the end as
`NOT_RESTORING`. Two uploads at a time are read; another connection is refused and closed.

A cursor's `offset` is that of the next record its consumer wants. It goes back only with `rewind`.
`current` is false when the stream it was committed for is no more.

With `auth.acl`, what no rule allows (`penstock.logd.security.acl`) is refused as
`PERMISSION_DENIED`; of streams, groups, cursors and nodes an answer has what its caller may see.
`STALE_VERSION` refuses a change of rules or quotas that is `based_on` a version that is no more.
Over its quota a request is held up, and then refused as `QUOTA_EXCEEDED` with `retry_after_ms`.
`test_acl` without a principal is about the caller itself.

A member of a consumer group sends `group_beat` several times a session, to any node; the
coordinator answers, as `penstock.logd.controller.group_messages` says. `sequence` rises with each;
`joining` until an answer has an epoch; `held` is what it may be reading, and what it was to stop
reading and is not in there any more is let go of. It reads what the last answer granted and no more
once `session_ms` have passed since it sent the last heartbeat that was answered. `error` is
"FENCED" or "REFUSED" and ends the membership. Without an answer (`UNAVAILABLE`) it sends the next
one in its time. It commits with `member` and, for each cursor, consumer (the group), incarnation
and the `epoch` of the grant; where one before it got further the answer says so. `FENCED` refuses
what is another's by now, `GROUP_ACTIVE` a commit without `member` of a consumer that is a group
with members. Of `groups`, a member has `member`, `streams`, `session_ms`; a partition `stream`,
`incarnation`, `partition`, `member` (who may be reading it, or null), `wanted` (who is to) and
`epoch`.
"""

import struct
from typing import TYPE_CHECKING, Any, Final

import orjson

from penstock.base.lazy_module import LazyModule
from penstock.logd.api.operations import OPERATIONS, Document
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import BODY_SIZE_MAX, HEADER_SIZE
from penstock.logd.limits import FETCH_BYTES_MAX, REQUEST_SIZE_MAX, RESPONSE_HEADER_SIZE_MAX

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")  # only an answer with frames needs it

PAYLOAD_MAX: Final = FETCH_BYTES_MAX + BODY_SIZE_MAX + HEADER_SIZE
"""Bytes of a response's payload: what may be asked for, or one frame beyond it."""

Response = tuple[Document, memoryview]

_NOTHING: Final = memoryview(b"")

REQUEST_HEAD: Final = struct.Struct("<I")
RESPONSE_HEAD: Final = struct.Struct("<IQ")


def encode_request(request: Document, upload: bytes = b"") -> bytes:
    """Encode a request, its length included, and what follows it.

    Raises:
        RefusedError: `BAD_REQUEST`: longer than a server takes, or no JSON can say it.
    """
    try:
        body = orjson.dumps(request)
    except orjson.JSONEncodeError as error:  # an integer beyond 64 bits, text that is not UTF-8
        raise RefusedError("BAD_REQUEST", f"the request cannot be written: {error}") from None
    check_request_size(len(body))
    return REQUEST_HEAD.pack(len(body)) + body + upload


def decode_request(body: bytes) -> Document:
    """Decode a request's JSON.

    Raises:
        RefusedError: `BAD_REQUEST`: not a JSON object with a known shape of `api` and `id`.
    """
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError("BAD_REQUEST", f"the request is not JSON: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("api"), str):
        raise RefusedError("BAD_REQUEST", "the request is not an object with a string `api`")
    if not isinstance(request.get("id", 0), int):
        raise RefusedError("BAD_REQUEST", "`id` is not an integer")
    return request


def upload_size(request: Document) -> int:
    """Bytes that follow a request.

    Raises:
        RefusedError: `BAD_REQUEST`: it may have none, or not so many.
    """
    size = request.get("upload", 0)
    if size == 0:
        return 0
    most = HEADER_SIZE + BODY_SIZE_MAX
    operation = OPERATIONS.get(request["api"])
    uploads = operation is not None and operation.uploads
    if not uploads or type(size) is not int or not 0 < size <= most:
        names = ", ".join(name for name, one in OPERATIONS.items() if one.uploads)
        message = f"upload: 1 to {most} bytes, of `{names}`"
        raise RefusedError("BAD_REQUEST", message, key="upload")
    return size


def check_request_size(size: int) -> None:
    """Refuse a request length before any of it is read.

    Raises:
        RefusedError: `BAD_REQUEST`.
    """
    if not 0 < size <= REQUEST_SIZE_MAX:
        raise RefusedError(
            "BAD_REQUEST", f"a request of {size} bytes; 1 to {REQUEST_SIZE_MAX} are taken"
        )


def encode_response(header: Document, payload_length: int = 0) -> bytes:
    """Encode everything of a response before its payload."""
    body = orjson.dumps(header)
    return RESPONSE_HEAD.pack(len(body), payload_length) + body


def decode_response_head(data: bytes, *, payload_max: int) -> tuple[int, int]:
    """Decode the two lengths of a response.

    Raises:
        CorruptError: A length is beyond what a server may send.
    """
    header_length, payload_length = RESPONSE_HEAD.unpack(data)
    if data.startswith((b"INFO", b"HTTP")):
        other = "a NATS server" if data.startswith(b"INFO") else "an HTTP server"
        raise CorruptError(f"{other} answers there: not a logd server")
    if not 0 < header_length <= RESPONSE_HEADER_SIZE_MAX or payload_length > payload_max:
        raise CorruptError(
            f"response announces {header_length} and {payload_length} bytes: not a logd server?"
        )
    return header_length, payload_length


def error_document(error: RefusedError) -> Document:
    """A refusal as the `error` of a response header."""
    return {"code": error.code, "message": str(error)} | error.detail


def raise_error(document: Document) -> None:
    """Raise the refusal that a response header carries, if it does."""
    error = document.get("error")
    if error is None:
        return
    detail = {name: value for name, value in error.items() if name not in ("code", "message")}
    raise RefusedError(str(error.get("code")), str(error.get("message")), **detail)


class ResponseDecoder:
    """A connection's responses, one after the other, out of its bytes.

    The caller reads from its socket straight into `room()` and says how much with `filled()`: a
    payload is copied once, from the kernel to where its frames are decoded.

    Args:
        where: The peer, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._view = memoryview(bytearray(RESPONSE_HEAD.size))
        self._filled = 0
        self._lengths: tuple[int, int] | None = None
        self._header: Document | None = None

    def room(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        return self._view[self._filled :]

    def filled(self, count: int) -> Response | None:
        """Take note of bytes that were put into `room`; a response when one is complete.

        Raises:
            CorruptError: Not a response of logd's; the connection is of no more use.
        """
        self._filled += count
        if self._filled < len(self._view):
            return None
        whole = self._view
        if self._lengths is None:
            self._lengths = decode_response_head(bytes(whole), payload_max=PAYLOAD_MAX)
            self._expect(self._lengths[0])
            return None
        if self._header is None:
            header = self._header = self._decode(bytes(whole))
            if self._lengths[1]:
                self._expect_payload(self._lengths[1])
                return None
            whole = _NOTHING
        else:
            header = self._header
        self._lengths = self._header = None
        self._expect(RESPONSE_HEAD.size)
        return header, whole.toreadonly()

    def _expect(self, size: int) -> None:
        self._view = memoryview(bytearray(size))
        self._filled = 0

    def _expect_payload(self, size: int) -> None:
        self._view = memoryview(pa.allocate_buffer(size)).cast("B")  # not filled with zeros first
        self._filled = 0

    def _decode(self, body: bytes) -> dict[str, Any]:
        try:
            header = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise CorruptError(f"answer is not JSON: {error}", where=self._where) from None
        if not isinstance(header, dict):
            raise CorruptError("answer is not an object", where=self._where)
        return header
