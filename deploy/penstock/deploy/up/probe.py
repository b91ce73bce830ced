"""Ask a part's admin endpoint for JSON, on the loopback interface."""

import json
from typing import Any, cast

from penstock.base.http.client import Request, fetch, target_of

ANSWER_BYTES_MAX = 4 * 1024 * 1024


async def get_json(url: str, *, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The JSON object at `url`, whatever the status code; None when there is no such answer."""
    request = Request(target_of(url))
    try:
        answer = await fetch(url, request, timeout_s=timeout_s, body_bytes_max=ANSWER_BYTES_MAX)
        document = json.loads(answer.body)
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


async def is_serving(admin_url: str) -> bool:
    """Return whether `/healthz` says ready or degraded, or "ok" as nats-server does."""
    answer = await get_json(f"{admin_url}/healthz", timeout_s=1.0)
    if answer is None:
        return False
    return answer.get("health") in ("ready", "degraded") or answer.get("status") == "ok"
