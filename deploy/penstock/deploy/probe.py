"""Ask a part's admin endpoint: a small HTTP client for JSON on the loopback interface."""

import asyncio
import json
from typing import Any, cast
from urllib.parse import urlsplit

ANSWER_BYTES_MAX = 4 * 1024 * 1024


async def get_json(url: str, *, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The JSON object at `url`, whatever the status code; None when there is no such answer."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                writer.write(f"GET {parts.path or '/'} HTTP/1.0\r\nHost: penstock\r\n\r\n".encode())
                answer = await _read_all(reader)
            finally:
                writer.close()
        document = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (OSError, TimeoutError, ValueError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """What the server sends until it closes.

    Raises:
        OSError: It sends more than `ANSWER_BYTES_MAX`.
    """
    chunks: list[bytes] = []
    while chunk := await reader.read(65_536):
        chunks.append(chunk)
        if sum(map(len, chunks)) > ANSWER_BYTES_MAX:
            raise OSError("the answer is too large")
    return b"".join(chunks)


async def is_serving(admin_url: str) -> bool:
    """Whether `/healthz` says ready or degraded; nats-server says "ok"."""
    answer = await get_json(f"{admin_url}/healthz", timeout_s=1.0)
    if answer is None:
        return False
    return answer.get("health") in ("ready", "degraded") or answer.get("status") == "ok"
