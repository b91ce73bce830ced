"""The console's way to a job's dead letters: over TLS, with the token of actions and no other."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock.deploy.console.config import AccessSection, ConsoleConfig
from penstock.deploy.console.letters import PATH, RouterDoors
from penstock.logd.errors import UnavailableError
from penstock.router import replays
from penstock.service import AdminAccess, Health, Status, Visitor, admin_server
from tests.support.certificates import Authority

READS, ACTS = "0123456789abcdef", "fedcba9876543210"


class Job:
    """A router's admin endpoint that takes down what it is asked to do."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def answer(self, visitor: Visitor, body: bytes) -> tuple[str, Mapping[str, Any]]:
        self.asked.append((visitor.authorization, json.loads(body)))
        if visitor.authorization != f"Bearer {ACTS}":
            return "401 Unauthorized", {"error": "that is not the token"}
        return "202 Accepted", {"done": "1 files"}


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def config(tmp_path: Path, job: Job) -> Iterator[ConsoleConfig]:
    authority = Authority(tmp_path)
    made = authority.sign("router", "IP:127.0.0.1")
    for name, token in (("admin", READS), ("actions", ACTS)):
        (tmp_path / f"{name}.token").write_text(f"{token}\n")
    access = AdminAccess(
        token_file=tmp_path / "admin.token", cert_file=made.cert, key_file=made.key
    )
    status = Status("router", "lake", "1.0", Health.READY)
    server = admin_server(lambda: status, CollectorRegistry(), access, {PATH: job.answer})
    address = server.start("127.0.0.1:0")
    yield ConsoleConfig(
        parts={"router": f"https://{address}"},
        access=AccessSection(ca_file=authority.cert),
        router_token_file=tmp_path / "actions.token",
        token_file=tmp_path / "console.token",
        timeout_s=20,
    )
    server.close()


def test_the_console_and_the_router_speak_of_the_same_path() -> None:
    assert PATH == replays.PATH


async def test_a_job_behind_tls_is_asked_with_the_token_of_actions(
    config: ConsoleConfig, job: Job
) -> None:
    answer = await RouterDoors(config).about_letters("router", {"do": "replay", "sink": "lake"})
    assert answer == {"done": "1 files"}
    assert job.asked == [(f"Bearer {ACTS}", {"do": "replay", "sink": "lake"})]


async def test_why_nothing_is_done_is_told(config: ConsoleConfig, tmp_path: Path) -> None:
    doors = RouterDoors(config)
    (tmp_path / "actions.token").write_text("another\n")
    with pytest.raises(UnavailableError, match="that is not the token"):
        await doors.about_letters("router", {"do": "list"})
    (tmp_path / "actions.token").unlink()
    with pytest.raises(UnavailableError, match=r"actions\.token"):
        await doors.about_letters("router", {"do": "list"})
    with pytest.raises(UnavailableError, match="knows no router 'other'"):
        await doors.about_letters("other", {"do": "list"})
    unknown = config.model_copy(update={"access": AccessSection()})
    with pytest.raises(UnavailableError):
        await RouterDoors(unknown).about_letters("router", {"do": "list"})
