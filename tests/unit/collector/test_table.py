"""What `top` shows."""

from typing import Any

import pytest

from penstock.collector.cli.admin import rates, render


def status(received: int, **more: Any) -> dict[str, Any]:
    stage = {"name": "source/unix", "received": received, "sent": received - 5, "lag": 5}
    return {
        "name": "host-1",
        "health": "degraded",
        "reasons": ["NATS at nats://127.0.0.1:4222 cannot be reached"],
        "stages": [
            {**stage, "errors": 1, "detail": {"dropped_spool_full": 1, "quarantined": 0}},
            {**stage, "name": "publish/" + "x" * 60, "errors": 0, "detail": {}},
        ],
        "info": {
            "spool": {"bytes": 512 << 20, "max_bytes": 1 << 30},
            "delivery": {"in_flight_bytes": 100, "window_bytes": 2048, "ack_shortest_s": 0.0021},
            "reconciliation": {"unix": {"difference": 0}},
        },
        **more,
    }


def test_rates_are_of_the_time_between() -> None:
    first, second = rates(status(100), status(350), 0.5)
    assert (first["received_per_s"], first["sent_per_s"]) == (500.0, 500.0)
    assert first["detail"] == {"dropped_spool_full": 1}
    assert second["held"] == 5
    assert rates(None, status(100), 1.0)[0]["received_per_s"] is None
    assert rates(status(100), status(5), 1.0)[0]["received_per_s"] == 0.0, "it was restarted"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    now = status(350)
    lines = render(now, rates(status(100), now, 1.0), width=width).splitlines()
    assert max(map(len, lines)) <= max(width, 56)
    text = "\n".join(lines)
    assert "degraded" in text
    assert "NATS at nats" in text
    assert "512.0 MiB of 1.0 GiB (50.0 %)" in text or width < 60
    assert "balances" in text


def test_an_account_that_does_not_balance_is_loud() -> None:
    now = status(1)
    now["info"]["reconciliation"]["unix"]["difference"] = 3
    assert "OFF BY 3" in render(now, rates(None, now, 0), width=80)
