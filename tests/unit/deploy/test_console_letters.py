"""The console's way to a job's dead letters: over TLS, with the token of actions and no other."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock.base.clock import SystemClock
from penstock.deploy.console.actions import DEAD_LETTERS_PATH, RouterClient
from penstock.deploy.console.authorizer import token_of
from penstock.deploy.console.config import AccessSection, ConsoleConfig
from penstock.deploy.console.http_client import Answer, one_line_of
from penstock.deploy.console.poller import Poller
from penstock.deploy.console.rates import Rates
from penstock.logd.errors import UnavailableError
from penstock.router.replay import service
from penstock.service import AdminAccess, ConfigError, Health, Requester, Status, admin_server
from tests.support.certificates import Authority

READS, ACTS = "0123456789abcdef", "fedcba9876543210"


class Job:
    """A router's admin endpoint that takes down what it is asked to do."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def answer(self, visitor: Requester, body: bytes) -> tuple[str, Mapping[str, Any]]:
        self.asked.append((visitor.authorization, json.loads(body)))
        if visitor.authorization != f"Bearer {ACTS}":
            return "401 Unauthorized", {"error": "that is not the token"}
        return "202 Accepted", {"done": "1 file"}


def doors_of(config: ConsoleConfig, component: str = "router") -> RouterClient:
    return RouterClient(config, lambda _: component)


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
    server = admin_server(
        lambda: status, CollectorRegistry(), access, {DEAD_LETTERS_PATH: job.answer}
    )
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
    assert DEAD_LETTERS_PATH == service.PATH


async def test_a_job_behind_tls_is_asked_with_the_token_of_actions(
    config: ConsoleConfig, job: Job
) -> None:
    answer = await doors_of(config).about_dead_letters("router", {"do": "replay", "sink": "lake"})
    assert answer == {"done": "1 file"}
    assert job.asked == [(f"Bearer {ACTS}", {"do": "replay", "sink": "lake"})]


async def test_why_nothing_is_done_is_told(config: ConsoleConfig, tmp_path: Path) -> None:
    listeners = doors_of(config)
    (tmp_path / "actions.token").write_text("another\n")
    with pytest.raises(UnavailableError, match="that is not the token"):
        await listeners.about_dead_letters("router", {"do": "list"})
    for held in (b"two\nlines", b"two\xfflines"):
        (tmp_path / "actions.token").write_bytes(held)
        with pytest.raises(UnavailableError, match="one line of printable text") as told:
            await listeners.about_dead_letters("router", {"do": "list"})
        assert "two" not in str(told.value)
    (tmp_path / "actions.token").unlink()
    with pytest.raises(UnavailableError, match=r"actions\.token"):
        await listeners.about_dead_letters("router", {"do": "list"})
    with pytest.raises(UnavailableError, match="knows no router 'other'"):
        await listeners.about_dead_letters("other", {"do": "list"})
    unknown = config.model_copy(update={"access": AccessSection()})
    with pytest.raises(UnavailableError):
        await doors_of(unknown).about_dead_letters("router", {"do": "list"})


@pytest.mark.parametrize(
    ("component", "why"),
    [("collector", "is a collector"), ("nats", "is a nats"), ("", "has not said yet")],
)
async def test_the_token_of_actions_is_shown_to_routers_alone(
    config: ConsoleConfig, job: Job, component: str, why: str
) -> None:
    with pytest.raises(UnavailableError, match=rf"router {why}.*correct the key `parts`"):
        await doors_of(config, component).about_dead_letters("router", {"do": "list"})
    assert job.asked == []


PLAIN = [
    "http://10.0.0.7:9296", "http://router:9296", "http://[fd00::1]:9296", "http://127.0.0.1.nip:1",
    "http://127.0.0.1@10.0.0.7:9296",
]  # fmt: skip


@pytest.mark.parametrize("url", PLAIN)
async def test_the_token_of_actions_is_not_sent_in_clear_to_other_machines(
    config: ConsoleConfig, url: str
) -> None:
    asked: list[str] = []

    async def ask(url: str, *_: Any, **__: Any) -> Answer:
        asked.append(url)
        return Answer({})

    def listeners(url: str) -> RouterClient:
        known = config.model_copy(update={"parts": {"router": url}})
        return RouterClient(known, lambda _: "router", ask)

    with pytest.raises(UnavailableError, match=r"not sent over plain http.*https://"):
        await listeners(url).about_dead_letters("router", {"do": "list"})
    assert asked == []
    for near in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://router:1"):
        assert await listeners(near).about_dead_letters("router", {"do": "list"}) == {}
    assert len(asked) == 4


async def test_what_a_part_is_its_last_answer_says(job: Job) -> None:
    status = Status("collector", "edge", "1.0", Health.READY)
    server = admin_server(
        lambda: status, CollectorRegistry(), None, {DEAD_LETTERS_PATH: job.answer}
    )
    address = server.start("127.0.0.1:0")
    config = ConsoleConfig(parts={"router": f"http://{address}"}, timeout_s=20)
    answered = asyncio.Event()
    polling = Poller(config, Rates(10**9), SystemClock(), answered.set)
    assert polling.component_of("router") == polling.component_of("other") == ""
    task = asyncio.create_task(polling.run())
    await answered.wait()
    task.cancel()
    assert polling.component_of("router") == "collector"
    server.close()


def test_a_token_of_several_lines_is_shown_to_nobody(tmp_path: Path) -> None:
    token = tmp_path / "token"
    for held in (b"two lines of\na token that is long", b"\xff" * 40):
        token.write_bytes(held)
        with pytest.raises(ConfigError, match="token_file") as error:
            token_of(token)
        assert "lines of" not in str(error.value)
        with pytest.raises(ValueError, match="one line of printable text") as told:
            one_line_of(token)
        assert "lines of" not in str(told.value)
    token.write_text("a token that is long\n")
    assert one_line_of(token) == "a token that is long"
