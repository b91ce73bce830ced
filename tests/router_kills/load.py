"""A publisher that never rests: numbered records in batches, each acknowledged by logd."""

import asyncio
import random
import threading
import uuid
from typing import Final

import nats

from penstock.logd.batch import Record, build_batch, encode_body
from penstock.logd.envelope import TYPE_BATCH_ACK, BatchPayload, decode_envelope, encode_batch
from tests.support.router import FIRST_TIME_NS, log_line

SUBJECT: Final = "telemetry.logs.kills"
_SERVICES: Final = 3
_RECORDS_MAX: Final = 200


def line_of(number: int) -> bytes:
    """The record with a number."""
    return log_line(number, service=f"service-{number % _SERVICES}")


class Load:
    """Publishes from a thread of its own until it is told to finish.

    Args:
        nats_url: Where to.
        rng: Draws how many records a batch has.
        pause_s: Between two batches, on the average.
    """

    def __init__(self, nats_url: str, rng: random.Random, *, pause_s: float) -> None:
        self.acked = 0
        self._nats_url = nats_url
        self._rng = rng
        self._pause_s = pause_s
        self._end = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> int:
        """Publish no more.

        Returns:
            How many records there are, all of them acknowledged.
        """
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.acked

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except Exception as error:  # noqa: BLE001 - `finish` raises it
            self._error = error

    async def _publish(self) -> None:
        client = await nats.connect(self._nats_url)
        producer, sequence = uuid.uuid4().bytes, 0
        while not self._end.is_set():
            numbers = range(self.acked, self.acked + self._rng.randint(1, _RECORDS_MAX))
            records = [Record(SUBJECT, line_of(n), FIRST_TIME_NS + n) for n in numbers]
            payload = BatchPayload(
                schema_version=1,
                record_count=len(records),
                producer_id=producer,
                previous_sequence=sequence,
                sequence=sequence + 1,
                body=encode_body(build_batch(records), compression="zstd"),
            )
            answer = await client.request(SUBJECT, encode_batch(payload), timeout=60)
            envelope = decode_envelope(answer.data)
            assert envelope is not None, answer.data
            assert envelope.type == TYPE_BATCH_ACK
            sequence += 1
            self.acked = numbers.stop
            self._end.wait(self._rng.uniform(0, 2 * self._pause_s))
        await client.close()
