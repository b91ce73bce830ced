"""More than logd can take, a logd that stands still, and streams that match everything."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from penstock.logd.format.acks import Nack
from tests.support.logd import Logd
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LOGS = {"name": "logs", "subject": "telemetry.logs.>"}
TIGHT = {**LOGS, "max_intake_bytes": 65_536}


def gaps(logd: Logd) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = logd.daemon.status()["info"]["ingest_gaps"]
    return found


def ended(logd: Logd, reason: str) -> list[dict[str, Any]]:
    return [gap for gap in gaps(logd)["ended"] if gap["reason"] == reason]


async def flood_until_nobody_is_there(client: Client) -> int:
    """Publish more than fits, again and again, until a request finds no responder."""
    sent = 0
    async with asyncio.timeout(180):
        while True:
            for _ in range(500):
                await client.publish("telemetry.logs.a", bytes(1000))
            sent += 500
            try:
                await client.request("telemetry.logs.a", b"anybody?", timeout=20)
            except NoRespondersError:
                return sent
            sent += 1


async def test_under_lasting_overload_a_stream_leaves_and_comes_back_drained(
    tmp_path: Path, nats_url: str
) -> None:
    logd = Logd(
        tmp_path / "logd", nats_url, [TIGHT], unsubscribe_after_s=0.3, resubscribe_after_s=1.0
    )
    with logd:
        client = await nats.connect(nats_url)
        sent = await flood_until_nobody_is_there(client)

        tries = 0

        async def published() -> bool:
            nonlocal tries
            tries += 1
            try:
                await client.jetstream().publish("telemetry.logs.a", b"after", timeout=5)
            except (nats.js.errors.Error, NatsTimeoutError):
                return False
            return True

        async with asyncio.timeout(60):
            while not await published():
                pass
        wait_until(lambda: ended(logd, "unsubscribed"), what="the gap is over")
        wait_until(lambda: ended(logd, "busy"), what="drops are over")
        wait_until(lambda: logd.daemon.status()["health"] == "ready", what="ready again")
        stage = logd.stage("logs")
        assert stage["detail"]["refused_busy"] > 0
        assert stage["received"] <= sent + tries
        assert stage["received"] == stage["sent"] + stage["errors"]
        dropped = sum(gap["messages"] for gap in ended(logd, "busy"))
        assert 0 < dropped <= stage["detail"]["refused_busy"]
        assert logd.values("logs")[-1] == b"after"
        await client.close()


async def test_what_can_never_fit_is_too_large_while_the_rest_goes_on(
    tmp_path: Path, nats_url: str
) -> None:
    with Logd(tmp_path / "logd", nats_url, [TIGHT]) as logd:
        client = await nats.connect(nats_url)
        js = client.jetstream()
        with pytest.raises(nats.js.errors.APIError) as raised:
            await js.publish("telemetry.logs.a", bytes(70_000))
        assert raised.value.err_code == Nack.MESSAGE_TOO_LARGE.err_code
        assert (await js.publish("telemetry.logs.a", b"small")).seq == 1
        assert logd.stage("logs")["detail"]["refused_message_too_large"] == 1
        await client.close()


async def test_a_logd_that_stood_still_is_cut_off_and_says_so(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text('max_pending: 1MB\nwrite_deadline: "1s"\n')
    with nats_server(tmp_path / "nats", config=config) as server:
        server_log = tmp_path / "nats" / "nats-server.log"
        with Logd(tmp_path / "logd", server.url, [LOGS]) as logd:
            client = await nats.connect(server.url)
            os.kill(logd.daemon.pid, signal.SIGSTOP)
            try:
                for number in range(100_000):
                    await client.publish("telemetry.logs.a", b"%d:" % number + bytes(1000))
                    if not number % 1000:
                        await client.flush()
                        if "Slow Consumer" in server_log.read_text():
                            break
            finally:
                os.kill(logd.daemon.pid, signal.SIGCONT)
            await wait_until_async(
                lambda: ended(logd, "reconnecting"), what="the gap is over", within_s=30
            )
            await client.jetstream().publish("telemetry.logs.a", b"-1:last")
            values = await asyncio.to_thread(logd.values, "logs")
            numbers = [int((value or b"").split(b":")[0]) for value in values]
            assert numbers[:-1] == sorted(set(numbers[:-1]))
            assert numbers[-1] == -1
            [gap] = ended(logd, "reconnecting")
            assert (gap["streams"], gap["messages"]) == (["logs"], None)
            assert gap["start"] < gap["end"]
            await client.close()


async def test_a_stream_of_everything_stores_no_acks_and_feeds_on_nothing(
    tmp_path: Path, nats_url: str
) -> None:
    everything = {"name": "all", "subject": ">", "ack_on_reply": False}
    with Logd(tmp_path / "logd", nats_url, [everything, LOGS]) as logd:
        client = await nats.connect(nats_url)
        for _ in range(50):
            await client.jetstream().publish("telemetry.logs.a", b"x")
        await client.publish("elsewhere", b"x", reply="telemetry.logs.answers")
        # A publisher whose inbox is a subject that is stored: its acks are stored, and end there.
        odd = await nats.connect(nats_url, inbox_prefix=b"telemetry.logs.inbox")
        for _ in range(50):
            await odd.jetstream().publish("telemetry.logs.a", b"x")
        await odd.jetstream().publish("telemetry.logs.a", b"last")
        wait_until(lambda: logd.stage("logs")["sent"] >= 50 + 2 * 51, what="the last ack is stored")
        wait_until(lambda: logd.stage("all")["sent"] >= 51 + 2 * 51, what="everything is stored")
        # Whatever those had set going would come before these.
        await client.jetstream().publish("telemetry.logs.a", b"behind")
        wait_until(lambda: logd.stage("all")["sent"] >= 52 + 2 * 51, what="the last")
        assert logd.stage("logs")["received"] == 51 + 2 * 51
        assert logd.stage("all")["received"] == 52 + 2 * 51
        assert logd.stage("all")["detail"]["skipped"] == 51
        with logd.client() as log:
            assert log.match("_INBOX.x") == []
            assert log.match("elsewhere") == ["all"]
        await client.close()
        await odd.close()
