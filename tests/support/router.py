"""What tests of the router need: records in a real log, a job, and its lake read back."""

import asyncio
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import (
    TYPE_BATCH_ACK,
    BatchPayload,
    decode_envelope,
    encode_batch,
)
from tests.support.logd import Logd
from tests.support.processes import Daemon, free_port
from tests.support.waiting import PATIENCE

STREAMS = [
    {"name": "logs", "subject": "telemetry.logs.>"},
    {"name": "traces", "subject": "telemetry.traces.>"},
]
FIRST_TIME_NS = 1_795_000_000_000_000_000
BATCH_RECORDS = 1000


def log_line(number: int, *, service: str = "checkout", severity: int = 9) -> bytes:
    """A log record as a collector stores it."""
    return json.dumps(
        {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": FIRST_TIME_NS + number * 1_000_001,
            "severity_number": severity,
            "severity_text": {9: "INFO", 17: "ERROR"}[severity],
            "body": f"order {number} ☃",
            "attributes": {"number": number, "http.route": "/orders", "tags": ["a", "b"]},
            "resource": {"service.name": service, "service.version": "1.2.3"},
        },
        ensure_ascii=False,
    ).encode()


def span_line(number: int, *, service: str = "checkout", status: str = "OK") -> bytes:
    """A span record as a collector stores it."""
    return json.dumps(
        {
            "schema": "span/1.0",
            "kind": "span",
            "time_unix_nano": FIRST_TIME_NS + number,
            "end_time_unix_nano": FIRST_TIME_NS + number + 5,
            "trace_id": f"{number + 1:032x}",
            "span_id": f"{number + 1:016x}",
            "name": "GET /orders",
            "status_code": status,
            "resource": {"service.name": service},
        }
    ).encode()


def publish(
    nats_url: str, subject: str, values: Sequence[bytes], *, records: int = BATCH_RECORDS
) -> None:
    """Store values in order, in batches as a collector publishes them; returns when all are."""
    asyncio.run(_publish(nats_url, subject, values, records))


async def _publish(nats_url: str, subject: str, values: Sequence[bytes], count: int) -> None:
    client = await nats.connect(nats_url)
    producer = uuid.uuid4().bytes
    for previous, start in enumerate(range(0, len(values), count)):
        part = values[start : start + count]
        records = [
            Record(subject, value, FIRST_TIME_NS + start + number)
            for number, value in enumerate(part)
        ]
        payload = BatchPayload(
            schema_version=1,
            record_count=len(part),
            producer_id=producer,
            previous_sequence=previous,
            sequence=previous + 1,
            body=encode_body(build_batch(records), compression="zstd"),
        )
        answer = await _ask(client, subject, encode_batch(payload))
        envelope = decode_envelope(answer.data)
        assert envelope is not None, answer.data
        assert envelope.type == TYPE_BATCH_ACK
    await client.close()


async def _ask(client: Client, subject: str, batch: bytes) -> Msg:
    """Publish a batch, again where nobody listens: a leader may lose its lease for a moment."""
    async with asyncio.timeout(20 * PATIENCE):
        while True:
            try:
                return await client.request(subject, batch, timeout=20)
            except NoRespondersError:
                await asyncio.sleep(0.1)


class RouterJob:
    """A job in its own directory, run as a process.

    Args:
        directory: For everything the job writes.
        logd: Address of logd's fetch endpoint.
        keys: Keys of the job file that differ from a job with one Parquet sink, `lake`.
    """

    def __init__(self, directory: Path, logd: str, **keys: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.lake = directory / "lake"
        self.checkpoint_dir = directory / "checkpoint"
        self.config: dict[str, Any] = {
            "job": "test",
            "logd": logd,
            "streams": ["logs", "traces"],
            "checkpoint_dir": str(self.checkpoint_dir),
            "admin": f"127.0.0.1:{free_port()}",
            "trigger": {"interval_s": 0.2},
            "routes": [{"name": "everything", "sinks": ["lake"]}],
            "sinks": {"lake": {"type": "parquet", "path": str(self.lake)}},
        } | keys
        self.daemon = Daemon("router", self.config, directory)

    def committed(self) -> dict[str, int]:
        """The next offset of each stream that the slowest sink has not got."""
        offsets: dict[str, int] = self.daemon.status()["info"]["committed"]
        return offsets

    def kill_clients(self, port: int) -> int:
        """Kill the workers of Spark that have a connection to a port; returns how many these are.

        The port is that of a sink's destination, which runs in this process.
        """
        own = {os.getpid(), self.daemon.pid}
        known = psutil.net_connections("tcp")
        found = {it.pid for it in known if it.raddr and it.raddr.port == port and it.pid}
        for pid in found - own:
            psutil.Process(pid).kill()
        return len(found - own)

    def client(self, port: int, address: str) -> psutil.Process:
        """The process of this job whose connection is from this port to an address.

        Connections to other addresses may be from the same port at the same time.
        """
        job = psutil.Process(self.daemon.pid)
        (found,) = [
            process
            for process in [job, *job.children(recursive=True)]
            if (port, address) in _connections_of(process)
        ]
        return found

    def delivered(self) -> int:
        """How many records the lake has; none before there is a file."""
        return self.rows().num_rows if any(self.lake.rglob("*.parquet")) else 0

    def rows(self) -> pa.Table:
        """The lake, as any reader of hive-partitioned Parquet gets it, in log order."""
        return read_lake(self.lake)


@contextmanager
def job_of_logs(
    directory: Path,
    nats_url: str,
    lines: Sequence[bytes],
    sinks: dict[str, Any] | None = None,
    **keys: Any,
) -> Iterator[RouterJob]:
    """A log with records of one stream and a job that reads it, not started; both end at the end.

    Args:
        directory: For everything that log and job write.
        nats_url: The NATS server's.
        lines: The records.
        sinks: Settings of the sinks, each of which gets all records; None: the sink `lake`.
        keys: Further keys of the job file.
    """
    if sinks is not None:
        keys |= {"sinks": sinks, "routes": [{"name": "all", "sinks": [*sinks]}]}
    with Logd(directory / "logd", nats_url, STREAMS[:1]) as logd:
        publish(nats_url, "telemetry.logs.x", lines)
        job = RouterJob(directory / "router", logd.fetch, streams=["logs"], **keys)
        try:
            yield job
        finally:
            job.daemon.close()


def read_lake(lake: Path) -> pa.Table:
    """A lake's rows by stream and offset."""
    table = ds.dataset(lake, format="parquet", partitioning="hive").to_table()
    return table.sort_by(
        [("stream", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )


def _connections_of(process: psutil.Process) -> set[tuple[int, str]]:
    """The port and the address of each connection of a process; none where it has just ended."""
    try:
        found = process.net_connections("tcp")
    except psutil.Error:
        return set()
    return {
        (it.laddr.port, f"{it.raddr.ip}:{it.raddr.port}")
        for it in found
        if it.status == psutil.CONN_ESTABLISHED
    }
