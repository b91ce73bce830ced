"""Read a logd's streams and manage them, over its framed TCP protocol; blocking, no daemon's code.

with LogClient("127.0.0.1:9293") as log:
    start, end = log.offsets("logs")
    for header, batch in log.batches("logs", start, end):
        ...
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import orjson
import pyarrow as pa

from penstock.logd.batch import Record, decode_body
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.logd.fetch_wire import (
    RESPONSE_HEAD,
    decode_response_head,
    encode_request,
    raise_error,
)
from penstock.logd.frame import BODY_SIZE_MAX, HEADER_SIZE, FrameHeader
from penstock.logd.limits import FETCH_BYTES_MAX
from penstock.logd.rows import Frame, batch_records, slice_rows, split_frames

_PAYLOAD_MAX: Final = FETCH_BYTES_MAX + BODY_SIZE_MAX + HEADER_SIZE
_DEFAULT_BYTES_MAX: Final = 4 * 1024 * 1024


class OffsetRange(NamedTuple):
    """Records that can be read: `start` inclusive, `end` exclusive (high watermark plus one)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """Where one partition stands.

    Attributes:
        start_offset: The first record that can be read.
        high_watermark: The last record that can be read; -1 when there is none.
        end_offset: The next one to be written.
        epoch: The leader epoch.
        size_bytes: Of its frames on disk.
    """

    partition: int
    start_offset: int
    high_watermark: int
    end_offset: int
    epoch: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """One stream.

    Attributes:
        incarnation: Differs between a stream and a later one of the same name.
        options: The stream's options by name.
    """

    name: str
    subject: str
    incarnation: str
    partitions: tuple[PartitionInfo, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer of one fetch.

    Attributes:
        frames: Whole frames, their CRCs checked; the first may begin before the offset asked for.
        range: What can be read of the partition now.
        high_watermark: The last record that can be read; -1 when there is none.
        next_offset: Where to go on.
        epoch: The leader epoch of the server.
        incarnation: Of the stream.
    """

    frames: list[Frame]
    range: OffsetRange
    high_watermark: int
    next_offset: int
    epoch: int
    incarnation: str


class LogClient:
    """One connection to a logd, made when first needed and again after it broke.

    A call that finds the connection it used before broken is tried once more on a new one. Not for
    use by several threads at once.

    Args:
        server: The address of logd's fetch endpoint, ``HOST:PORT``.
        timeout_s: Seconds to wait for a connection and for each answer, beyond a fetch's own wait.
    """

    def __init__(self, server: str, *, timeout_s: float = 10.0) -> None:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit():
            msg = f"server {server!r} is not HOST:PORT"
            raise ValueError(msg)
        self.server = server
        self._address = (host.strip("[]"), int(port))
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._last_id = 0

    def __enter__(self) -> Self:
        """Nothing is connected yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def streams(self) -> list[StreamInfo]:
        """Every stream of the server, by name."""
        header, _ = self._call({"api": "streams"})
        return [_stream_info(document) for document in header["streams"]]

    def stream(self, name: str) -> StreamInfo:
        """One stream.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        header, _ = self._call({"api": "streams", "stream": name})
        return _stream_info(header["streams"][0])

    def match(self, subject: str) -> list[str]:
        """Names of the streams that store what is published on a subject."""
        header, _ = self._call({"api": "match", "subject": subject})
        return list(header["streams"])

    def create_stream(self, name: str, subject: str, **options: Any) -> StreamInfo:
        """Create a stream, or find it as asked for.

        Raises:
            RefusedError: `STREAM_DIFFERS`, `BAD_SUBJECT`, `BAD_REQUEST`.
        """
        config = {"name": name, "subject": subject} | options
        header, _ = self._call({"api": "create_stream", "config": config})
        return _stream_info(header["stream"])

    def delete_stream(self, name: str) -> None:
        """Delete a stream with its data.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        self._call({"api": "delete_stream", "stream": name}, retry=False)

    def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        """What can be read of a partition now."""
        header = self._offsets(stream, partition, "latest")
        return OffsetRange(header["start_offset"], header["high_watermark"] + 1)

    def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        """The first record at or after a time; the end of what can be read when there is none."""
        return int(self._offsets(stream, partition, timestamp_ns)["offset"])

    def fetch(  # noqa: PLR0913 - a request of many optional parts
        self,
        stream: str,
        offset: int,
        *,
        partition: int = 0,
        bytes_max: int = _DEFAULT_BYTES_MAX,
        bytes_min: int = 1,
        wait_ms: int = 0,
        subject: str | None = None,
    ) -> Fetched:
        """Read whole frames from an offset on.

        Args:
            stream: The stream's name.
            offset: Of the first record wanted; the end of the range waits for what comes.
            partition: Of the stream.
            bytes_max: Bytes of frames wanted at most; one frame is sent even if larger.
            bytes_min: With fewer bytes to send the server waits, up to `wait_ms`.
            wait_ms: Milliseconds the server may wait; 0 answers at once.
            subject: A filter; records on other subjects are left out.

        Raises:
            RefusedError: `OUT_OF_RANGE` with `earliest` and `latest` (exclusive), `UNKNOWN_STREAM`.
            CorruptError: A frame's CRC does not match.
            UnavailableError: The server cannot be reached or does not answer in time.
        """
        request = {
            "api": "fetch",
            "stream": stream,
            "partition": partition,
            "offset": offset,
            "bytes_max": bytes_max,
            "bytes_min": bytes_min,
            "wait_ms_max": wait_ms,
        }
        if subject is not None:
            request["subject"] = subject
        header, payload = self._call(request, wait_s=wait_ms / 1000)
        where = f"{self.server} {stream}/{partition}"
        return Fetched(
            frames=list(split_frames(payload, where=where)),
            range=OffsetRange(header["start_offset"], header["high_watermark"] + 1),
            high_watermark=header["high_watermark"],
            next_offset=header["next_offset"],
            epoch=header["epoch"],
            incarnation=header["incarnation"],
        )

    def batches(
        self,
        stream: str,
        start: int,
        end: int | None = None,
        *,
        partition: int = 0,
        bytes_max: int = _DEFAULT_BYTES_MAX,
    ) -> Iterator[tuple[FrameHeader, pa.RecordBatch]]:
        """Read the frames that hold offsets from `start` to `end`, as Arrow batches.

        The first and the last batch may hold rows outside the range: see `slice_rows`. Records
        below `end` that are not there yet are waited for. No row comes twice, though compaction may
        move rows between frames meanwhile; offsets may be missing within frames that it rewrote.

        Args:
            stream: The stream's name.
            start: The first offset, inclusive.
            end: Exclusive; by default the end of what can be read at the time of the call.
            partition: Of the stream.
            bytes_max: Bytes of frames to fetch at a time.
        """
        upto = self.offsets(stream, partition).end if end is None else end
        offset = start
        while offset < upto:
            fetched = self.fetch(
                stream, offset, partition=partition, bytes_max=bytes_max, wait_ms=1000
            )
            for header, body in fetched.frames:
                if header.base_offset >= upto:
                    return
                batch = decode_body(body, where=f"{stream}/{header.base_offset}")
                if start < offset and header.base_offset < offset:  # rewritten since the last fetch
                    batch = slice_rows(header, batch, offset)
                yield header, batch
            offset = fetched.next_offset

    def records(
        self, stream: str, start: int, end: int | None = None, *, partition: int = 0
    ) -> Iterator[tuple[int, Record]]:
        """Read records one by one as (offset, record); for people and tests, not for bulk."""
        for header, batch in self.batches(stream, start, end, partition=partition):
            yield from batch_records(header, slice_rows(header, batch, start, end))

    def _offsets(self, stream: str, partition: int, at: str | int) -> dict[str, Any]:
        header, _ = self._call(
            {"api": "offsets", "stream": stream, "partition": partition, "at": at}
        )
        return header

    def _call(
        self, request: dict[str, Any], *, wait_s: float = 0.0, retry: bool = True
    ) -> tuple[dict[str, Any], memoryview]:
        reused = self._socket is not None
        try:
            return self._exchange(request, wait_s)
        except TimeoutError:
            self.close()
            raise UnavailableError(
                f"logd at {self.server} did not answer within {self._timeout_s + wait_s:g} s"
            ) from None
        except OSError as error:
            self.close()
            if reused and retry:
                return self._call(request, wait_s=wait_s, retry=False)
            raise UnavailableError(
                f"logd at {self.server} cannot be reached: {error.strerror or error}"
            ) from None
        except RefusedError:
            raise
        except BaseException:  # also an interrupt: what is left of the answer must not be read
            self.close()
            raise

    def _exchange(
        self, request: dict[str, Any], wait_s: float
    ) -> tuple[dict[str, Any], memoryview]:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_id += 1
        self._socket.settimeout(self._timeout_s + wait_s)
        self._socket.sendall(encode_request(request | {"id": self._last_id}))
        header_length, payload_length = decode_response_head(
            bytes(self._receive(RESPONSE_HEAD.size)), payload_max=_PAYLOAD_MAX
        )
        header = _decode_header(bytes(self._receive(header_length)), self.server)
        payload = self._receive(payload_length)
        if header.get("id") not in (self._last_id, 0):
            raise CorruptError(f"answer to request {header.get('id')}", where=self.server)
        raise_error(header)
        return header, payload

    def _receive(self, length: int) -> memoryview:
        assert self._socket is not None
        view = memoryview(bytearray(length))
        filled = 0
        while filled < length:
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                raise ConnectionResetError("the server closed the connection")
            filled += count
        return view.toreadonly()


def _decode_header(body: bytes, where: str) -> dict[str, Any]:
    try:
        header = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise CorruptError(f"answer is not JSON: {error}", where=where) from None
    if not isinstance(header, dict):
        raise CorruptError("answer is not an object", where=where)
    return header


def _stream_info(document: dict[str, Any]) -> StreamInfo:
    return StreamInfo(
        name=document["name"],
        subject=document["subject"],
        incarnation=document["incarnation"],
        partitions=tuple(PartitionInfo(**item) for item in document["partitions"]),
        options=document["options"],
    )


__all__ = [
    "Fetched",
    "Frame",
    "LogClient",
    "OffsetRange",
    "PartitionInfo",
    "StreamInfo",
    "batch_records",
    "slice_rows",
    "split_frames",
]
