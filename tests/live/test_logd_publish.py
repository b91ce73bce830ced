"""Publishing with unmodified NATS clients to a real logd."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client

from penstock.logd.format.acks import Nack, decode_ack
from tests.support.logd import Logd

pytestmark = pytest.mark.live

LOGS = {"name": "logs", "subject": "telemetry.logs.>"}


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as running:
        yield running


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


async def test_stock_js_publish_gets_a_durable_ack(logd: Logd, client: Client) -> None:
    js = client.jetstream()
    first = await js.publish("telemetry.logs.app", b"one")
    second = await js.publish("telemetry.logs.app", b"two", stream="logs")
    assert (first.stream, first.seq, second.seq) == ("logs", 1, 2)
    assert not first.duplicate
    assert logd.values("logs") == [b"one", b"two"]


async def test_message_id_is_a_duplicate_within_the_window_also_after_a_restart(
    logd: Logd, client: Client
) -> None:
    js = client.jetstream()
    headers = {"Nats-Msg-Id": "a-1"}
    first = await js.publish("telemetry.logs.app", b"one", headers=headers)
    again = await js.publish("telemetry.logs.app", b"one", headers=headers)
    assert (again.seq, again.duplicate) == (first.seq, True)
    for kill in (False, True):
        await asyncio.to_thread(logd.restart, kill=kill)
        after = await js.publish("telemetry.logs.app", b"one", headers=headers)
        assert (after.seq, after.duplicate) == (first.seq, True)
    assert logd.values("logs") == [b"one"]


@pytest.mark.parametrize(
    ("headers", "nack"),
    [
        ({"Nats-Expected-Last-Sequence": "7"}, Nack.WRONG_LAST_SEQUENCE),
        ({"Nats-Expected-Last-Msg-Id": "x"}, Nack.WRONG_LAST_MESSAGE_ID),
        ({"Nats-Expected-Last-Sequence": "x"}, Nack.BAD_HEADER),
        ({"Nats-Rollup": "all"}, Nack.NO_ROLLUP),
    ],
)
async def test_refusals_are_jetstream_api_errors(
    logd: Logd, client: Client, headers: dict[str, str], nack: Nack
) -> None:
    js = client.jetstream()
    await js.publish("telemetry.logs.app", b"one", headers={"Nats-Msg-Id": "a"})
    with pytest.raises(nats.js.errors.APIError) as raised:
        await js.publish("telemetry.logs.app", b"two", headers=headers)
    assert (raised.value.code, raised.value.err_code) == (nack.code, nack.err_code)
    right = {"Nats-Expected-Last-Sequence": "1", "Nats-Expected-Last-Msg-Id": "a"}
    assert (await js.publish("telemetry.logs.app", b"three", headers=right)).seq == 2
    assert logd.values("logs") == [b"one", b"three"]


async def test_keys_and_tombstones_of_plain_messages_are_stored_in_their_columns(
    logd: Logd, client: Client
) -> None:
    js = client.jetstream()
    key = {"Penstock-Key": "user 1"}
    await client.publish("telemetry.logs.a", b"v", headers=key)
    await js.publish("telemetry.logs.a", b"v", headers=key | {"Other": "o"})
    await js.publish("telemetry.logs.a", b"", headers=key | {"Penstock-Tombstone": "true"})
    with pytest.raises(nats.js.errors.APIError) as raised:
        await js.publish("telemetry.logs.a", b"", headers={"Penstock-Tombstone": "true"})
    assert raised.value.err_code == Nack.BAD_HEADER.err_code
    with logd.client() as log:
        records = [record for _, record in log.records("logs", 0)]
    assert [(record.key, record.value) for record in records] == [
        (b"user 1", b"v"),
        (b"user 1", b"v"),
        (b"user 1", None),
    ]
    assert [[name for name, _ in record.headers if name != "Nats-Expected-Stream"]
            for record in records] == [[], ["Other"], []]  # fmt: skip


async def test_ack_policies_silence_acks_and_never_refusals(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    stream = {**LOGS, "ack_policy": "none", "max_message_bytes": 2000}
    with Logd(tmp_path / "quiet", nats_url, [stream]) as logd:
        answers = await client.subscribe(client.new_inbox())
        for number, policy in enumerate(("none", "all", "leader", None)):
            headers = None if policy is None else {"Penstock-Ack-Policy": policy}
            await client.publish("telemetry.logs.a", b"%d" % number, answers.subject, headers)
        await client.publish("telemetry.logs.a", b"x" * 3000, answers.subject)
        acks = [decode_ack((await answers.next_msg(timeout=10)).data) for _ in range(3)]
        # The refusal waits for nothing, so it may come before the acks or after them.
        assert sorted((ack.offset, ack.nack) for ack in acks if ack.nack is None) == [
            (1, None),
            (2, None),
        ]
        assert [ack.nack for ack in acks if ack.nack] == [Nack.MESSAGE_TOO_LARGE]
        assert logd.values("logs") == [b"0", b"1", b"2", b"3"]
        await client.flush()
        assert answers.pending_msgs == 0


async def test_plain_publish_without_reply_is_stored_with_headers_and_subject(
    logd: Logd, client: Client
) -> None:
    await client.publish("telemetry.logs.a.b", b"x" * 300_000)
    await client.publish("telemetry.logs.c", b"", headers={"K": "v", "Traceparent": "00-1"})
    await client.jetstream().publish("telemetry.logs.d", b"last")
    with logd.client() as log:
        records = [record for _, record in log.records("logs", 0)]
    assert [record.subject for record in records] == [
        "telemetry.logs.a.b",
        "telemetry.logs.c",
        "telemetry.logs.d",
    ]
    assert [record.value for record in records] == [b"x" * 300_000, b"", b"last"]
    assert dict(records[1].headers) == {"K": b"v", "Traceparent": b"00-1"}
    assert records[0].reply is None
    assert records[2].reply is not None


@pytest.mark.parametrize("policy", ["commit", "interval", "never"])
async def test_every_fsync_policy_keeps_acked_records_over_a_kill(
    tmp_path: Path, nats_url: str, client: Client, policy: str
) -> None:
    stream = {**LOGS, "fsync": policy, "fsync_interval_ms": 20}
    with Logd(tmp_path / policy, nats_url, [stream]) as logd:
        js = client.jetstream()
        for number in range(20):
            await js.publish("telemetry.logs.a", b"%d" % number)
        await asyncio.to_thread(logd.restart, kill=True)
        assert (await js.publish("telemetry.logs.a", b"20")).seq == 21
        assert logd.values("logs") == [b"%d" % number for number in range(21)]


async def test_counters_reconcile_and_are_scraped(logd: Logd, client: Client) -> None:
    js = client.jetstream()
    for _ in range(2):
        await js.publish("telemetry.logs.a", b"one", headers={"Nats-Msg-Id": "same"})
    with pytest.raises(nats.js.errors.APIError):
        await js.publish("telemetry.logs.a", b"x", headers={"Nats-Expected-Last-Sequence": "7"})
    stage = logd.stage("logs")
    assert (stage["received"], stage["sent"], stage["lag"], stage["errors"]) == (3, 1, 0, 1)
    assert stage["detail"]["duplicates"] == stage["detail"]["refused_wrong_last_sequence"] == 1
    url = f"http://{logd.daemon.admin}/metrics"
    with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
        text = answer.read().decode()
    assert 'penstock_logd_records_committed_total{stream="logs"} 1.0' in text
    assert (
        'penstock_logd_records_refused_total{reason="wrong_last_sequence",stream="logs"} 1.0'
        in text
    )
    assert 'penstock_logd_high_watermark{stream="logs"} 0.0' in text


async def test_metrics_show_the_streams_in_trouble_and_then_the_busiest_of_many(
    tmp_path: Path, nats_url: str
) -> None:
    streams = [{"name": f"s{n}", "subject": f"many.{n}"} for n in range(6)]
    with Logd(tmp_path / "logd", nats_url, streams, max_metrics_streams=3) as logd:
        client = await nats.connect(nats_url)
        js = client.jetstream()
        for _ in range(3):
            await js.publish("many.4", b"busy")
        await js.publish("many.1", b"less")
        with pytest.raises(nats.js.errors.APIError):
            await js.publish("many.2", b"no", headers={"Nats-Expected-Last-Sequence": "7"})
        metrics = logd.daemon.get("/metrics").read().decode()
        shown = set(re.findall(r'penstock_logd_high_watermark\{stream="(s\d)"', metrics))
        assert shown == {"s1", "s2", "s4"}
        assert set(re.findall(r'penstock_logd_cluster_leads\{stream="(s\d)"', metrics)) == shown
        assert set(re.findall(r'compaction_passes_total\{stream="(s\d)"', metrics)) == shown
        (hidden,) = re.findall(r"\npenstock_logd_streams_without_series (\S+)", metrics)
        (there,) = re.findall(r"\npenstock_logd_streams (\S+)", metrics)
        assert float(hidden) == float(there) - 3
        await client.close()
