"""Telling the service manager how a daemon is: systemd's notification protocol, see sd_notify(3).

Without `NOTIFY_SOCKET` in the environment nobody asked, and nothing is sent.
"""

import os
import socket
from collections.abc import Mapping

from penstock.base.clock import SystemClock


def notify(*, environ: Mapping[str, str] | None = None, **facts: str | int) -> bool:
    """Send facts, as in `notify(READY=1)`; whether somebody was told."""
    name = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not name:
        return False
    message = "\n".join(f"{key}={value}" for key, value in facts.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(message.encode(), f"\0{name[1:]}" if name.startswith("@") else name)
        except OSError:
            return False  # a manager that is gone is no reason to end
    return True


def notify_reloading() -> bool:
    """Reading the configuration again begins; `notify(READY=1)` ends it."""
    return notify(RELOADING=1, MONOTONIC_USEC=SystemClock().monotonic_ns() // 1000)
