"""Ask a part's endpoint for JSON: one bounded request on a connection of its own."""

import asyncio
import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.deploy.console.config import AccessSection

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one answer: the status of a logd with 10,000 partitions."""

_READ_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question.

    Attributes:
        document: None: there was no such answer.
        problem: Why not, for people; empty when there was.
    """

    document: dict[str, Any] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Posted:
    """What a part is asked to do, and the token it wants for that."""

    document: dict[str, Any]
    token: str


async def ask_json(
    url: str,
    access: AccessSection,
    *,
    timeout_s: float,
    posted: Posted | None = None,
    address: str | None = None,
) -> Answer:
    """The JSON object at `url`, or what a part answers to a POST there. Never raises.

    `address` is the one to ask of those that the host's name stands for; None: any.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await _request(url, access, posted, address)
        if posted is not None and status >= HTTPStatus.BAD_REQUEST:
            return Answer(None, _said(status, body))
        return Answer(_object(status, body))
    except TimeoutError:
        problem = f"no answer within {timeout_s:g} s"
    except ConnectionRefusedError:
        problem = "nothing listens there"
    except (OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
    return Answer(None, problem)


def _said(status: int, body: bytes) -> str:
    """Why a part does not do something."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"HTTP {status}"


def _object(status: int, body: bytes) -> dict[str, Any]:
    """The JSON object in an answer.

    Raises:
        ValueError: There is none.
    """
    if status in (401, 403):
        msg = f"HTTP {status}: the console is not let in; see its keys `access` and `part_tokens`"
        raise ValueError(msg)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        msg = f"HTTP {status}: the answer is not what was asked for"
        raise ValueError(msg)  # noqa: TRY004 - what comes is wrong, not a type of ours
    return document


async def _request(
    url: str, access: AccessSection, posted: Posted | None, address: str | None
) -> tuple[int, bytes]:
    """Status code and body.

    Raises:
        OSError: It cannot be reached, or sends too much.
        ValueError: What comes is not HTTP, or the address is none.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        address or parts.hostname,
        port_of(url),
        ssl=_tls(access) if secure else None,
        server_hostname=parts.hostname if secure else None,
    )
    try:
        verb, sent = (
            ("GET", b"") if posted is None else ("POST", json.dumps(posted.document).encode())
        )
        host = parts.netloc.rpartition("@")[2]
        lines = [f"{verb} {parts.path or '/'} HTTP/1.0", f"Host: {host}"]
        if posted is not None:
            lines += [f"Authorization: Bearer {posted.token}", f"Content-Length: {len(sent)}"]
        elif secure and access.token_file is not None:
            lines.append(f"Authorization: Bearer {one_line_of(access.token_file)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
        head, _, body = (await _read_all(reader)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        msg = "what answers there does not speak HTTP"
        raise ValueError(msg)
    return int(words[1]), body


def one_line_of(path: Path) -> str:
    """The token in a file, as a header can hold it.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds something else, which is not shown.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable():
        msg = f"{path}: one line of printable text is expected"
        raise ValueError(msg)
    return token


def port_of(url: str) -> int:
    """The port of an address of a part."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _tls(access: AccessSection) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=access.ca_file)
    if access.cert_file is not None:
        context.load_cert_chain(access.cert_file, access.key_file)
    return context


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    whole = bytearray()
    while chunk := await reader.read(_READ_BYTES):
        whole += chunk
        if len(whole) > ANSWER_BYTES_MAX:
            msg = f"the answer is larger than {ANSWER_BYTES_MAX} bytes"
            raise OSError(msg)
    return bytes(whole)
