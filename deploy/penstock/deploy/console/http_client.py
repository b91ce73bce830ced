"""Ask a part's endpoint for JSON: one bounded request on its own connection."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.base.http.client import (
    AnswerTooLargeError,
    NoAnswerError,
    NotHttpError,
    Request,
    client_tls,
    fetch,
    target_of,
)
from penstock.deploy.console.config import AccessSection

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one answer: the status of a logd with 10,000 partitions."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        document: None: there was no such answer.
        problem: Why not, for people; empty when there was.
    """

    document: dict[str, Any] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Posted:
    """A request to a part to act, with the token it wants for that."""

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
        status, body = await _request(url, access, posted, address, timeout_s)
        if posted is not None and status >= HTTPStatus.BAD_REQUEST:
            return Answer(None, _said(status, body))
        return Answer(_object(status, body))
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
        fix = "check its keys `access` and `part_tokens`"
        msg = f"HTTP {status}: the token of the console was rejected; {fix}"
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
    url: str, access: AccessSection, posted: Posted | None, address: str | None, timeout_s: float
) -> tuple[int, bytes]:
    """Status code and body.

    Raises:
        OSError: It cannot be reached, or sends too much.
        ValueError: What comes is not HTTP, or the address is none.
    """
    secure = urlsplit(url).scheme == "https"
    if posted is not None:
        body = json.dumps(posted.document).encode()
        request = Request(target_of(url), _bearer(posted.token), method="POST", body=body)
    elif secure and access.token_file is not None:
        request = Request(target_of(url), _bearer(one_line_of(access.token_file)))
    else:
        request = Request(target_of(url))
    tls = client_tls(access.ca_file, access.cert_file, access.key_file) if secure else None
    try:
        answer = await fetch(
            url,
            request,
            timeout_s=timeout_s,
            body_bytes_max=ANSWER_BYTES_MAX,
            tls=tls,
            address=address,
        )
    except (NotHttpError, NoAnswerError):
        msg = "what answers there does not speak HTTP"
        raise ValueError(msg) from None
    except AnswerTooLargeError:
        msg = f"the answer is larger than {ANSWER_BYTES_MAX} bytes"
        raise OSError(msg) from None
    return answer.status, answer.body


def _bearer(token: str) -> dict[str, str]:
    """The header, whose text goes as latin-1: a token is shown in UTF-8."""
    return {"Authorization": f"Bearer {token.encode().decode('latin-1')}"}


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
