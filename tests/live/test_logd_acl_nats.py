"""What logd cannot enforce is nats-server's: the permissions that logd prints for it."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
import pytest

from penstock.logd.client import calls
from penstock.logd.security.acl import AclRule, Action, Effect
from tests.support.callers import Callers
from tests.support.logd import Logd
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

STREAMS: list[dict[str, Any]] = [
    {"name": "orders", "subject": "orders.>"},
    {"name": "payments", "subject": "payments.*"},
    {"name": "everything", "subject": ">", "ack_on_reply": False},
]
RULES = (
    "allow alice publish subject:orders.eu.>",
    "deny alice publish subject:orders.eu.secret",
    "allow bob read orders",
    "allow carol publish *",
    "deny * publish subject:orders.frozen.>",
)


def rule(text: str) -> AclRule:
    effect, principal, action, resource = text.split()
    return AclRule(
        principal=principal, effect=Effect(effect), action=Action(action), resource=resource
    )


def printed(logd: Logd) -> str:
    command = [sys.executable, "-m", "penstock.logd", "acl", "nats", "--server", logd.fetch]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def publish_all(
    url: str, user: str, messages: list[tuple[str, str]], *, refused: int
) -> list[str]:
    """Publish as a user, each with its reply subject; what the server says of those it refuses."""
    said: list[str] = []

    async def told(error: Exception) -> None:
        said.append(str(error))

    client: Any = await nats.connect(url, user=user, password=f"pw-{user}", error_cb=told)
    for subject, reply in messages:
        await client.publish(subject, f"{user} {subject}".encode(), reply=reply)
    await client.flush()
    await wait_until_async(lambda: len(said) >= refused, what="the server has refused them")
    await client.close()
    return said


def test_the_printed_permissions_keep_out_who_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        nats_server(tmp_path / "open") as server,
        Logd(tmp_path / "first", server.url, STREAMS) as logd,
        logd.client() as log,
    ):
        log.ask(calls.put_acls([rule(text) for text in RULES]))
        block = printed(logd)
    for user in ("logd", "alice", "bob", "carol"):
        monkeypatch.setenv(f"NATS_PASSWORD_{user.upper()}", f"pw-{user}")
    config = tmp_path / "nats.conf"
    config.write_text(block)
    callers = Callers(tmp_path / "callers")
    access: dict[str, Any] = {"auth": callers.auth()}
    with nats_server(tmp_path / "closed", config=config) as server:
        url = server.url.replace("nats://", "nats://logd:pw-logd@")
        with (
            Logd(tmp_path / "second", url, STREAMS, **access) as logd,
            callers.client(logd, "root") as root,
        ):
            alice = [
                ("orders.eu.fr", ""),
                ("orders.eu.secret", ""),
                ("orders.us.x", ""),
                ("payments.a", ""),
                ("_INBOX.stolen.1", ""),  # an ack for somebody else
                ("orders.eu.x", "payments.forged"),  # an ack that would be a message
            ]
            carol = [("orders.us.y", ""), ("orders.frozen.x", ""), ("_INBOX.stolen.1", "")]
            said = asyncio.run(publish_all(server.url, "alice", alice, refused=4))
            assert len([text for text in said if "permissions violation" in text.lower()]) == 4
            said = asyncio.run(publish_all(server.url, "bob", [("orders.eu.fr", "")], refused=1))
            assert len(said) == 1
            said = asyncio.run(publish_all(server.url, "carol", carol, refused=2))
            assert len(said) == 2
            for stream in ("orders", "everything"):
                wait_until(lambda: root.offsets(stream).end == 3, what="what may come has come")  # noqa: B023
            wait_until(
                lambda: "penstock_logd_acks_withheld_total 1.0" in callers.metrics(logd),
                what="the ack is withheld",
            )

            def subjects(stream: str) -> list[str]:
                start, end = root.offsets(stream)
                return [record.subject for _, record in root.records(stream, start, end)]

            stored = ["orders.eu.fr", "orders.eu.x", "orders.us.y"]
            assert subjects("orders") == stored
            assert subjects("payments") == []
            assert subjects("everything") == stored
