"""SRV records of a name, asked of a name server: RFC 1035 (messages), RFC 2782 (SRV).

The resolver of the system, which finds addresses, has no question for them. A question goes over
UDP, and over TCP when its answer is cut short. Names are whole: no search list is tried.
"""

import asyncio
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from penstock.collector.errors import RemoteProtocolError

_SRV: Final = 33
_INTERNET: Final = 1
_RECURSION_DESIRED: Final = 0x0100
_RESPONSE: Final = 0x8000
_TRUNCATED: Final = 0x0200
_NO_ERROR: Final = 0
_ERRORS: Final = {1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
_LABELS_MAX: Final = 128
"""Labels of a name; one has 255 bytes at most. Pointers that lead in a circle end there."""
_ATTEMPT_S: Final = 2.0
"""Time for one question over UDP before the next server is asked, as the resolver's 5 s."""
_SERVERS_MAX: Final = 3
"""Servers of resolv.conf that are asked, as its manual page says."""
_PORT: Final = 53


@dataclass(frozen=True, slots=True)
class SrvRecord:
    """A host and port behind a name."""

    target: str
    port: int


def encode_question(name: str, number: int) -> bytes:
    """A question for the SRV records of a name.

    Raises:
        ValueError: It can be no name.
    """
    head = struct.pack(">6H", number, _RECURSION_DESIRED, 1, 0, 0, 0)
    return head + _encoded(name) + struct.pack(">2H", _SRV, _INTERNET)


def decode_answer(data: bytes, name: str, number: int) -> list[SrvRecord] | None:
    """The records of an answer; None when it is cut short.

    Raises:
        RemoteProtocolError: It is none to the question, or the server reports an error.
    """
    try:
        found, flags, questions, answers, _, _ = struct.unpack_from(">6H", data)
        asked = _encoded(name) + struct.pack(">2H", _SRV, _INTERNET)
        at = 12 + len(asked)
        if found != number or not flags & _RESPONSE or questions != 1:
            raise RemoteProtocolError("an answer to another question")
        if data[12:at].lower() != asked.lower():
            raise RemoteProtocolError("an answer to another question")
        if (code := flags & 0xF) != _NO_ERROR:
            raise RemoteProtocolError(f"the name server answers {_ERRORS.get(code, code)}")
        if flags & _TRUNCATED:
            return None
        records: list[SrvRecord] = []
        for _ in range(answers):
            _, at = _name_at(data, at)
            kind, _, _, length = struct.unpack_from(">2HIH", data, at)
            at += 10
            if kind == _SRV:
                (port,) = struct.unpack_from(">H", data, at + 4)
                target, _ = _name_at(data, at + 6)
                records.append(SrvRecord(target, port))
            at += length
    except (struct.error, IndexError, UnicodeDecodeError):
        raise RemoteProtocolError("an answer that is no message of DNS") from None
    return sorted(records, key=lambda one: (one.target, one.port))


async def srv_records(name: str, server: tuple[str, int] | None) -> list[SrvRecord]:
    """Ask for the SRV records of a name.

    Args:
        name: Whole name.
        server: The name server; None: those of ``/etc/resolv.conf``, one after the other.

    Raises:
        OSError: No server can be reached.
        RemoteProtocolError: None has an answer.
        TimeoutError: None answers in time.
        ValueError: It can be no name.
    """
    servers = [server] if server is not None else await asyncio.to_thread(_configured_servers)
    failure: Exception = OSError("there is no name server in /etc/resolv.conf")
    for one in servers:
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                return await _ask(name, one)
        except TimeoutError:
            failure = TimeoutError(f"the name server {one[0]} does not answer")
        except (OSError, RemoteProtocolError) as error:
            failure = error
    raise failure


async def _ask(name: str, server: tuple[str, int]) -> list[SrvRecord]:
    number = random.SystemRandom().randrange(1 << 16)
    question = encode_question(name, number)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: _Datagram(loop.create_future()), remote_addr=server
    )
    try:
        transport.sendto(question)
        found = decode_answer(await protocol.answer, name, number)
    finally:
        transport.close()
    if found is not None:
        return found
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(struct.pack(">H", len(question)) + question)
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        whole = decode_answer(await reader.readexactly(length), name, number)
    except asyncio.IncompleteReadError:
        raise RemoteProtocolError("the name server closed the connection") from None
    finally:
        writer.transport.abort()
    return whole or []


class _Datagram(asyncio.DatagramProtocol):
    """Has the first datagram that a server answers."""

    def __init__(self, answer: "asyncio.Future[bytes]") -> None:
        self.answer = answer

    @override
    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.answer.done():
            self.answer.set_result(data)

    @override
    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


def _configured_servers() -> Sequence[tuple[str, int]]:
    lines = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    found = [words[1] for line in lines if (words := line.split())[:1] == ["nameserver"]]
    return [(host, _PORT) for host in found[:_SERVERS_MAX]]


def _encoded(name: str) -> bytes:
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    if not all(0 < len(label) <= 63 for label in labels):
        raise ValueError(f"{name!r} is no name of DNS")
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _name_at(data: bytes, at: int) -> tuple[str, int]:
    """A name, and where it ends; parts of it may stand before, where a pointer leads.

    Raises:
        IndexError: It goes beyond the end, or in a circle.
    """
    labels: list[str] = []
    end = 0
    for _ in range(_LABELS_MAX):
        length = data[at]
        if length & 0xC0 == 0xC0:
            end = end or at + 2
            at = (length & 0x3F) << 8 | data[at + 1]
        elif length == 0:
            return ".".join(labels), end or at + 1
        else:
            if at + 1 + length > len(data):
                raise IndexError
            labels.append(data[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
    raise IndexError
