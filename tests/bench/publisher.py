"""One publisher, a process of its own: `python -m tests.bench.publisher`.

It reads its job as a line of JSON, makes everything it will send, says "ready", waits for a line,
publishes, and answers with a line of JSON: when it began and ended (monotonic nanoseconds, the same
for all processes of a host), how many it sent, and how many answers were refusals.

Messages are made before the clock starts, and answers are counted, not parsed, so that the server
is what is measured. All kinds but the batches of logd are the same bytes for both systems.
"""

import asyncio
import re
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter_ns, time_ns  # noqa: TID251 - held against logd's dates
from typing import Any, Final

from tests.bench.fast_ingest import FastIngest
from tests.bench.nats_wire import Answers, Connection, inbox
from tests.bench.worker import work

PING: Final = b"PING\r\n"
ANSWER_S_MAX: Final = 60
"""Seconds without any answer after which a publisher gives up: nothing is sent twice."""
PATIENT_S: Final = 240.0
"""Seconds in which the kind `patient` sends a batch again: a worker has little more."""
DIFFERENT: Final = 1000
"""Payloads that differ, of the kinds which make them one by one; then they repeat."""
BLOCK_BYTES: Final = 64 * 1024
"""Bytes of unanswered messages that go out in one write."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a publisher is to do.

    Attributes:
        kind: A key of `KINDS`.
        url: Of NATS; of the kind `liftbridge`, ``HOST:PORT``.
        subject: To publish on; of the kind `liftbridge`, the stream.
        count: Messages; of the batched kinds, records.
        window: Messages (or whole batches) that may be unanswered.
        rate: Messages a second, of the kind `paced`.
        batch: Records of a batch.
        number: Tells publishers of one run apart.
    """

    kind: str
    url: str
    subject: str
    count: int
    size_bytes: int
    window: int = 1
    rate: float = 0.0
    batch: int = 1000
    number: int = 0


Result = dict[str, Any]
Prepared = Callable[[], Result]


def payload(size_bytes: int, number: int) -> bytes:
    """Printable bytes that begin with a number of 16 digits; the same for every system."""
    return (b"%016d" % number + bytes(range(32, 127)) * (size_bytes // 95 + 1))[:size_bytes]


def payloads(size_bytes: int) -> list[bytes]:
    """All that differ."""
    return [payload(size_bytes, number) for number in range(DIFFERENT)]


def message(subject: str, body: bytes, reply: bytes = b"") -> bytes:
    """A PUB as it goes over the wire."""
    head = b" ".join(part for part in (b"PUB", subject.encode(), reply) if part)
    return b"%b %d\r\n%b\r\n" % (head, len(body), body)


def _plain(job: Job) -> Prepared:
    """As fast as the server reads, no answers.

    `when` says of each block when it was begun, by when the server had it, and its messages: a PING
    follows each, because what is sent may wait in sockets for long. Unix ns.
    """
    connection = Connection(job.url)
    size_bytes = len(message(job.subject, payload(job.size_bytes, 0)))
    each = max(1, BLOCK_BYTES // size_bytes)
    messages = b"".join(message(job.subject, payload(job.size_bytes, n)) for n in range(each))
    block = memoryview(messages + PING)

    def run() -> Result:
        begun: list[tuple[int, int]] = []
        had_ns: list[int] = []
        for first in range(0, job.count, each):
            size = min(each, job.count - first)
            begun.append((time_ns(), size))
            connection.send(block if size == each else messages[: size * size_bytes] + PING)
            had_ns += [time_ns()] * connection.pongs()
        while len(had_ns) < len(begun):
            had_ns += [time_ns()] * connection.pongs(wait=True)
        when = [(at, had, size) for (at, size), had in zip(begun, had_ns, strict=True)]
        return {"sent": job.count, "refused": 0, "when": when}

    return run


def _acked(job: Job) -> Prepared:
    """At most `window` messages unanswered; each asks for an answer."""
    connection = Connection(job.url, timeout_s=ANSWER_S_MAX)
    answers = Answers(connection, job.number)
    bodies = (payload(job.size_bytes, number) for number in range(job.window))
    messages = [message(job.subject, body, inbox(job.number)) for body in bodies]
    block, size_bytes = memoryview(b"".join(messages)), len(messages[0])

    def run() -> Result:
        sent = 0
        while answers.count < job.count:
            burst = min(job.window - (sent - answers.count), job.count - sent)
            if burst:
                connection.send(block[: burst * size_bytes])
                sent += burst
            answers.wait()
        return {"sent": sent, "refused": answers.refused, "refusal": answers.first_refusal}

    return run


def _paced(job: Job) -> Prepared:
    """At a rate, whether answers come or not; the latency of each message.

    The clock of a message starts when it is written, or when it should have been, if the write of
    the one before was still blocked then.
    """
    connection = Connection(job.url)
    connection.subscribe(b"%b.*" % inbox(job.number))
    messages = [
        message(
            job.subject, payload(job.size_bytes, number), b"%b.%d" % (inbox(job.number), number)
        )
        for number in range(job.count)
    ]
    answer = re.compile(rb"MSG %b\.(\d+) 1 \d+\r\n(.*)\r\n" % re.escape(inbox(job.number)))
    interval_ns = int(1e9 / job.rate)

    def run() -> Result:
        begun_ns: list[int] = []
        latencies_ns: list[int] = []
        refusals: list[str] = []
        due_ns = perf_counter_ns() + interval_ns
        while len(latencies_ns) + len(refusals) < job.count:
            idle_s = max(0, due_ns - perf_counter_ns()) / 1e9
            sending = len(begun_ns) < job.count
            readable = select.select([connection.socket], [], [], idle_s if sending else None)[0]
            if readable:
                data, now_ns = connection.lines(), perf_counter_ns()
                for number, text in answer.findall(data):
                    if b'"error"' in text:
                        refusals.append(text.decode(errors="replace"))
                    else:
                        latencies_ns.append(now_ns - begun_ns[int(number)])
            now_ns = perf_counter_ns()
            if sending and now_ns >= due_ns:
                blocked = now_ns - due_ns > interval_ns
                begun_ns.append(due_ns if blocked else now_ns)
                connection.send(messages[len(begun_ns) - 1])
                due_ns += interval_ns
        latencies = {"latencies_ns": latencies_ns, "refusals": refusals}
        return {"sent": job.count, "refused": 0} | latencies

    return run


def _answered_each(job: Job, parts: Sequence[bytes]) -> Prepared:
    """Parts that are answered once each, at most `window` of them unanswered."""
    connection = Connection(job.url, timeout_s=ANSWER_S_MAX)
    answers = Answers(connection, job.number)

    def run() -> Result:
        sent = 0
        while answers.count < len(parts):
            while sent < len(parts) and sent - answers.count < job.window:
                connection.send(parts[sent])
                sent += 1
            answers.wait()
        refusal = answers.first_refusal
        return {"sent": sent * job.batch, "refused": answers.refused, "refusal": refusal}

    return run


def _batches(job: Job) -> Prepared:
    """Arrow batches in logd's envelope, one message each."""
    from penstock.logd.format.batch import SCHEMA_VERSION, Record, build_batch, encode_body
    from penstock.logd.format.envelope import BatchPayload, encode_batch

    bodies, at_ns = (payload(job.size_bytes, n) for n in range(job.batch)), perf_counter_ns()
    records = [Record(job.subject, body, at_ns) for body in bodies]
    body = encode_body(build_batch(records))
    producer = b"%016d" % (perf_counter_ns() % 10**15 * 10 + job.number)
    parts = []
    for sequence in range(1, job.count // job.batch + 1):
        data = encode_batch(
            BatchPayload(
                schema_version=SCHEMA_VERSION,
                record_count=job.batch,
                producer_id=producer,
                previous_sequence=sequence - 1,
                sequence=sequence,
                body=body,
            )
        )
        head = b"PUB %b %b %d" % (job.subject.encode(), inbox(job.number), len(data))
        parts.append(b"%b\r\n%b\r\n" % (head, data))
    return _answered_each(job, parts)


def _atomic(job: Job) -> Prepared:
    """JetStream's atomic batches (ADR-50, server 2.12): the last message of each is answered."""
    subject, run_number = job.subject.encode(), perf_counter_ns()
    bodies = [payload(job.size_bytes, number) for number in range(job.batch)]
    parts = []
    for number in range(job.count // job.batch):
        lines = []
        for sequence, body in enumerate(bodies, 1):
            last = sequence == job.batch
            name = b"b%d-%d-%d" % (job.number, run_number, number)
            headers = b"NATS/1.0\r\nNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n%b\r\n" % (
                name, sequence, b"Nats-Batch-Commit: 1\r\n" if last else b"",
            )  # fmt: skip
            reply = inbox(job.number) + b" " if last else b""
            sizes = b"%d %d" % (len(headers), len(headers) + len(body))
            lines.append(b"HPUB %b %b%b\r\n%b%b\r\n" % (subject, reply, sizes, headers, body))
        parts.append(b"".join(lines))
    return _answered_each(job, parts)


def _fast(job: Job) -> Prepared:
    """JetStream's fast ingest (ADR-50, server 2.14): its fastest publishing with any answer."""
    ingest = FastIngest(Connection(job.url), job.subject, payloads(job.size_bytes))
    ingest.prepare(job.count)

    def run() -> Result:
        ingest.run()
        return {"sent": job.count, "refused": 0, "flow": ingest.flow}

    return run


def _liftbridge(job: Job) -> Prepared:
    """Liftbridge's PublishAsync: at most `window` messages unanswered."""
    import grpc

    from tests.support.liftbridge import ALL
    from tests.support.protobuf_bytes import decode, encode

    channel = grpc.insecure_channel(job.url)
    grpc.channel_ready_future(channel).result(timeout=30)
    publish: Any = channel.stream_stream("/proto.API/PublishAsync")
    different = [encode({2: body, 3: job.subject, 8: ALL}) for body in payloads(job.size_bytes)]
    room = threading.Semaphore(job.window)

    def requests() -> Iterator[bytes]:
        for one in islice(cycle(different), job.count):
            room.acquire()
            yield one

    def run() -> Result:
        refusals: list[bytes] = []
        for answer in publish(requests()):
            if 2 in decode(answer):  # asyncError
                refusals.append(answer)
            room.release()
        refusal = repr(refusals[0][:300]) if refusals else ""
        return {"sent": job.count, "refused": len(refusals), "refusal": refusal}

    return run


def _submit(job: Job) -> Prepared:
    """`Publisher.submit` of Penstock's client, one record after the other."""
    import nats

    from penstock.logd.publisher import Publisher, PublishOptions

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(nats.connect(job.url))
    bodies = payloads(job.size_bytes)

    async def publish() -> int:
        async with Publisher(client, PublishOptions(max_in_flight=job.window)) as publisher:
            each = islice(cycle(bodies), job.count)
            tasks = [await publisher.submit(job.subject, body) for body in each]
            return len([await task for task in tasks])

    return lambda: {"sent": loop.run_until_complete(publish()), "refused": 0}


def _patient(job: Job) -> Prepared:
    """`Publisher.submit_batch` of Penstock's client: no answer, and a batch is sent again.

    A replica that does not lead, or no longer, answers no batch: a publisher asks again.
    """
    import nats

    from penstock.logd.publisher import Publisher, PublishOptions, Record

    loop, at_ns = asyncio.new_event_loop(), time_ns()
    client = loop.run_until_complete(nats.connect(job.url))
    bodies = (payload(job.size_bytes, number) for number in range(job.batch))
    records = [Record(job.subject, body, at_ns) for body in bodies]
    options = PublishOptions(max_in_flight=job.window, retry_s=PATIENT_S)

    async def publish() -> Result:
        async with Publisher(client, options) as publisher:
            each = range(job.count // job.batch)
            tasks = [await publisher.submit_batch(job.subject, records) for _ in each]
            await asyncio.gather(*tasks)
        return {"sent": job.batch * len(tasks), "refused": 0}

    return lambda: loop.run_until_complete(publish())


def _js_publish(job: Job) -> Prepared:
    """`js.publish` of nats-py, at most `window` messages unanswered."""
    import nats

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(nats.connect(job.url))
    bodies, stream = payloads(job.size_bytes), client.jetstream()

    async def publish() -> int:
        room = asyncio.Semaphore(job.window)

        async def one(body: bytes) -> None:
            await stream.publish(job.subject, body)
            room.release()

        tasks = []
        for body in islice(cycle(bodies), job.count):
            await room.acquire()
            tasks.append(asyncio.ensure_future(one(body)))
        return len(await asyncio.gather(*tasks))

    return lambda: {"sent": loop.run_until_complete(publish()), "refused": 0}


KINDS: Final[dict[str, Callable[[Job], Prepared]]] = {
    "plain": _plain,
    "acked": _acked,
    "paced": _paced,
    "batches": _batches,
    "atomic": _atomic,
    "fast": _fast,
    "liftbridge": _liftbridge,
    "submit": _submit,
    "patient": _patient,
    "js.publish": _js_publish,
}


def main() -> None:
    """Do the job on standard input."""

    def prepare(document: dict[str, Any]) -> Prepared:
        job = Job(**document)
        return KINDS[job.kind](job)

    work(prepare)


if __name__ == "__main__":
    main()
