"""The journal of audit records that are on their way: what it holds, and what is left to send.

A file is a sequence of entries, each

    type (1 byte) | length (u32, big-endian) | CRC-32 of type and payload (u32) | payload

    H   the resource as JSON, first in the file: records leave theirs to their batch's header
    R   a record's line
    S   sequence (u64), count (u32): the first so many unsettled records are on their way under this
        sequence
    A   sequence (u64): they are settled

After a crash the file says which records are unsettled. The process that reads it sends the
interrupted batch again under its sequence, with the same records, so the collector takes them once.
A torn end is cut off: what it held was not yet accepted.

Invariant: offered = settled + held, in order.
"""

import struct
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from penstock.specs.emit.delivery.core import Batch
from penstock.specs.emit.delivery.queue import Held

HEADER, RECORD, SENT, SETTLED = b"H", b"R", b"S", b"A"
_HEAD: Final = struct.Struct(">cII")
_SENT: Final = struct.Struct(">QI")
_SETTLED: Final = struct.Struct(">Q")
_KIND: Final = "audit"


def entry(kind: bytes, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload), zlib.crc32(kind + payload)) + payload


@dataclass(slots=True)
class Spill:
    """The records that a journal holds; append the entries that methods return, in their order.

    Attributes:
        bytes_max: Bound of the records that are not settled; beyond it `offer` refuses.
        sequence: The newest batch.
        flight: Number of the first records that are in flight.
        held_bytes: Bytes of all records that are not settled.
    """

    bytes_max: int
    resource_json: bytes = b"{}"
    sequence: int = 0
    flight: int = 0
    held_bytes: int = 0
    _lines: deque[bytes] = field(default_factory=deque)

    @property
    def records(self) -> int:
        """Records that wait; those on their way do not count."""
        return len(self._lines) - self.flight

    @property
    def held(self) -> int:
        return len(self._lines)

    def offer(self, line: bytes) -> bytes | None:
        """Take a record; None when there is no room."""
        if self.held_bytes + len(line) > self.bytes_max:
            return None
        self._lines.append(line)
        self.held_bytes += len(line)
        return entry(RECORD, line)

    def send(self, *, records_max: int, bytes_max: int) -> tuple[list[Held], bytes]:
        """The next batch: at least one record; none may be on its way."""
        assert self.flight == 0 < len(self._lines)
        taken: list[Held] = []
        size = 0
        for line in self._lines:
            if taken and (len(taken) >= records_max or size + len(line) > bytes_max):
                break
            taken.append((len(taken), _KIND, line))
            size += len(line)
        self.flight = len(taken)
        self.sequence += 1
        return taken, entry(SENT, _SENT.pack(self.sequence, self.flight))

    def settle(self, sequence: int) -> bytes | None:
        """The batch was answered for good; None when it is not the one on its way."""
        if not self.flight or sequence != self.sequence:
            return None
        self._forget()
        return entry(SETTLED, _SETTLED.pack(sequence))

    def batch(self) -> Batch | None:
        """The records that were sent and not answered."""
        if not self.flight:
            return None
        lines = [self._lines[number] for number in range(self.flight)]
        held = ((number, _KIND, line) for number, line in enumerate(lines))
        return Batch(self.sequence, tuple(held))

    def content(self) -> bytes:
        """A journal that says the same in the fewest bytes."""
        parts = [entry(HEADER, self.resource_json)]
        settled = self.sequence - 1 if self.flight else self.sequence
        parts.append(entry(SETTLED, _SETTLED.pack(settled)))
        parts += [entry(RECORD, line) for line in self._lines]
        if self.flight:
            parts.append(entry(SENT, _SENT.pack(self.sequence, self.flight)))
        return b"".join(parts)

    def replay(self, data: bytes) -> int:
        """Take over a journal's entries; returns how many of its bytes are good."""
        view, at = memoryview(data), 0
        while at + _HEAD.size <= len(data):
            kind, length, check = _HEAD.unpack_from(view, at)
            end = at + _HEAD.size + length
            payload = bytes(view[at + _HEAD.size : end])
            if len(payload) < length or zlib.crc32(kind + payload) != check:
                break
            if not self._apply(kind, payload):
                break
            at = end
        return at

    def _apply(self, kind: bytes, payload: bytes) -> bool:
        """One entry; False when it cannot follow what was before it."""
        match kind:
            case b"H":
                self.resource_json = payload
            case b"R":
                self._lines.append(payload)
                self.held_bytes += len(payload)
            case b"S":
                sequence, count = _SENT.unpack(payload)
                if self.flight or not 0 < count <= len(self._lines):
                    return False
                self.sequence, self.flight = sequence, count
            case b"A":
                (self.sequence,) = _SETTLED.unpack(payload)
                self._forget()
            case _:
                return False
        return True

    def _forget(self) -> None:
        for _ in range(self.flight):
            self.held_bytes -= len(self._lines.popleft())
        self.flight = 0
