"""What only the NATS sink does: logd behind it, sizes, rights, subjects that nobody stores."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import nats
import pytest

from penstock.logd.client import LogClient
from penstock.router.errors import StoppedError
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.nats.sink import NatsSink
from tests.support.logd import Logd
from tests.support.nats_accounts import Keys, Operator
from tests.support.nats_server import NatsServer
from tests.support.server_cases import FAST, NatsCase, NatsInTasksCase
from tests.support.sink_batches import batch, context, dead_letters, log_record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture
def case(tmp_path: Path) -> Iterator[NatsCase]:
    made = NatsCase(tmp_path)
    yield made
    made.close()


def test_another_logd_stores_each_record_once_with_its_key(tmp_path: Path, nats_url: str) -> None:
    streams = [{"name": "mirror", "subject": "mirror.>"}]
    with Logd(tmp_path / "logd", nats_url, streams) as logd:
        made = context(tmp_path)
        settings = {"type": "nats", "servers": nats_url, "subject": "mirror.{subject}", **FAST}
        sink = make_sink(NatsSink.model_validate(settings | {"stream": "mirror"}), made)
        rows = batch([log_record(number) for number in range(5)], key=b"k")
        sink.open()
        sink.write(rows)
        sink.write(rows)
        sink.close()
        with LogClient(logd.fetch) as log:
            parts = [
                part.select(["subject", "key", "value"]) for _, part in log.batches("mirror", 0)
            ]
    found = [row for part in parts for row in part.to_pylist()]
    assert [row["value"] for row in found] == rows["value"].to_pylist()
    about = {(row["subject"], row["key"]) for row in found}
    assert about == {("mirror.telemetry.logs.checkout", b"k")}
    assert made.meter.stage("x", received=5, lag=0).detail["already_there"] == 5


def test_a_message_that_is_too_large_for_nats_is_a_dead_letter(case: NatsCase) -> None:
    sink, made = case.sink()
    large = log_record(1, padding="x" * 9000)
    sink.write(batch([log_record(0), large, log_record(2)]))
    assert sorted(case.stored()) == [0, 2]
    assert [(it["offset"], it["code"]) for it in dead_letters(made)] == [(1, "nats_max_payload")]


@pytest.mark.parametrize("kind", [NatsCase, NatsInTasksCase])
def test_records_refused_at_the_beginning_of_a_batch_are_overtaken_by_no_other(
    tmp_path: Path, kind: type[NatsCase]
) -> None:
    """They are more than make a sink suspect its settings."""
    with closing(kind(tmp_path)) as case:
        sink, made = case.sink(batch={"max_records": 2})
        refused = [case.poison(number) for number in range(7)]
        sink.write(batch([*refused, *(log_record(number) for number in range(7, 20))]))
        assert case.numbers() == [*range(7, 20)]
        assert [it["offset"] for it in dead_letters(made)] == [*range(7)]


def test_a_subject_that_we_may_not_publish_on_is_waited_for(case: NatsCase) -> None:
    sink, made = case.sink(user="listener", timeout_s=0.5)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, batch([log_record(0)]))
        try:
            # A first try may also be too slow for `timeout_s`.
            wait_until(lambda: "permissions violation" in str(made.meter.problem).lower())
        finally:
            made.stop.set()
        with pytest.raises(StoppedError):
            writing.result(60)
    assert dead_letters(made) == []


def test_without_acknowledgement_the_server_is_enough(case: NatsCase) -> None:
    sink, made = case.sink(subject=f"unstored.{case.run}", acknowledge=False)
    sink.write(batch([log_record(number) for number in range(5)]))
    assert made.meter.stage("x", received=5, lag=0).sent == 5
    case.door.close()
    made.stop.set()
    with pytest.raises(StoppedError):
        sink.write(batch([log_record(5)]))


@pytest.mark.parametrize("wrong", ["expired", "of another's key", "of another operator", "none"])
def test_credentials_that_are_wrong_are_waited_for_and_never_shown(
    tmp_path: Path, wrong: str
) -> None:
    """And right ones are let in: a JWT and its key, of an account of the server's operator."""
    operator = Operator()
    right = operator.credentials()
    given = {
        "expired": operator.credentials(expires_s=1_700_000_000),
        "of another's key": operator.credentials(keys=Keys.make()),
        "of another operator": Operator().credentials(),
        "none": "hush",
    }[wrong]
    config, file, heard = tmp_path / "nats.conf", tmp_path / "sink.creds", tmp_path / "heard.creds"
    config.write_text(operator.config)
    file.write_text(given)
    heard.write_text(right)
    server = NatsServer(tmp_path / "server", config=config)
    made = context(tmp_path)
    settings = {"type": "nats", "servers": server.url, "subject": "x.{kind}", "acknowledge": False}
    login = {"credentials_file": str(file)}
    sink = make_sink(NatsSink.model_validate(settings | login | FAST), made)
    sink.open()
    with ThreadPoolExecutor(2) as pool:
        subscription_manager = threading.Event()
        reachability = pool.submit(
            asyncio.run, messages(server.url, str(heard), 3, subscription_manager)
        )
        assert subscription_manager.wait(60)
        writing = pool.submit(sink.write, batch([log_record(number) for number in range(3)]))
        problem = wait_until(lambda: _paused(made))  # at first the connection may just break
        file.write_text(right)
        writing.result(60)
        bodies = [json.loads(payload)["body"] for payload in reachability.result(60)]
    sink.close()
    server.close()
    assert bodies == [f"order {number} ☃" for number in range(3)]
    assert not any(line in problem for line in given.splitlines() if line)
    assert dead_letters(made) == []


def test_a_server_whose_limit_of_a_message_was_lowered_is_connected_to_anew(tmp_path: Path) -> None:
    """The server ends the connection of a client that sends too much, and nats-py gives up."""
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 8192")
    server = NatsServer(tmp_path / "server", config=config)
    made = context(tmp_path)
    settings = {"type": "nats", "servers": server.url, "subject": "x.{kind}", "acknowledge": False}
    sink = make_sink(NatsSink.model_validate(settings | FAST), made)
    sink.open()
    large = log_record(1, padding="x" * 3000)
    sink.write(batch([log_record(0), large]))
    assert dead_letters(made) == []
    config.write_text("max_payload: 2048")
    server.signal("reload")
    wait_until(lambda: "Reloaded: max_payload" in (tmp_path / "server/nats-server.log").read_text())
    sink.write(batch([log_record(2), large, log_record(3)]))
    sink.close()
    server.close()
    assert [it["code"] for it in dead_letters(made)] == ["nats_max_payload"]
    assert made.meter.stage("x", received=5, lag=0).sent == 4


def _paused(made: SinkContext) -> str:
    """What must be corrected, once that is known."""
    problem = made.meter.problem or ""
    return problem if "paused until that is corrected" in problem else ""


async def messages(
    url: str, credentials: str, count: int, subscription_manager: threading.Event
) -> list[bytes]:
    """The first messages below x., from when it listens."""
    client = await nats.connect(url, user_credentials=credentials)
    heard = await client.subscribe("x.>")
    await client.flush()
    subscription_manager.set()
    found = [(await heard.next_msg(timeout=60)).data for _ in range(count)]
    await client.close()
    return found
