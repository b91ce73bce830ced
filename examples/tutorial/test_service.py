"""The service's own test: what it emits is checked, and no server is needed."""

import httpx
from examples.tutorial.service import app
from examples.tutorial.telemetry import OrderPlaced

from penstock.specs.testing import Capture


async def order(total: float) -> dict[str, str]:
    """Place an order over HTTP."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/orders/o-1", params={"total": total, "customer": "u-1"})
        found: dict[str, str] = answer.json()
        return found


async def test_an_order_is_announced(specs_capture: Capture) -> None:
    """With the customer, and the trace of its request."""
    assert await order(24.5) == {"order": "o-1", "state": "placed"}
    event = specs_capture.assert_emitted(OrderPlaced, order_id="o-1", total=24.5)
    log = specs_capture.assert_logged("order received", total=24.5)
    assert event.context is not None
    assert event.context.user_id == "u-1"
    assert event.trace_id == log["trace_id"]


async def test_a_refused_order_is_not_announced(specs_capture: Capture) -> None:
    """It is only said."""
    await order(0)
    specs_capture.assert_not_emitted(OrderPlaced)
    specs_capture.assert_logged("order refused", reason="nothing to pay")
