"""One reader, a process of its own: `python -m tests.bench.reader`.

As with publishers, no kind does more with what it reads than it must: bytes are taken from the
socket into one buffer, and records are counted by what the server says or by looking for the
beginnings of messages. The kinds `client` and `subscriber` are the exceptions: that is what an
application does.
"""

import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from time import perf_counter_ns
from typing import Any, Final

from tests.bench.nats_wire import Connection
from tests.bench.worker import work

FETCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one fetch."""

_BUFFER: Final = 1024 * 1024

_QUIET_S: Final = 2.0
"""Seconds without a message, after which a counting subscriber expects no more."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a reader is to do.

    Attributes:
        kind: A key of `KINDS`.
        address: ``HOST:PORT`` of a fetch endpoint, a raw copy or Liftbridge's API, or a NATS URL.
        stream: To read.
        count: Records there are; of the kind `counted`, those that will be published.
        subject: Of the records.
        number: Tells readers of one run apart.
        bytes_max: Of one fetch of the kind `frames`.
        ca_file: Of the kind `frames`: whom to trust; with it, TLS.
        token: Of the kind `frames`: an API key.
    """

    kind: str
    address: str
    stream: str = ""
    count: int = 0
    subject: str = ""
    number: int = 0
    bytes_max: int = FETCH_BYTES
    ca_file: str = ""
    token: str = ""


Result = dict[str, Any]
Prepared = Callable[[], Result]


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _read_exactly(connection: socket.socket, view: memoryview, size: int) -> None:
    """Read and discard, into one buffer over and over, all but the last part."""
    left = size
    while left:
        count = connection.recv_into(view[: min(left, len(view))])
        if not count:
            raise ConnectionError("the server closed the connection")
        left -= count


def _frames(job: Job) -> Prepared:
    """logd's frames, as its fetch protocol sends them."""
    from penstock.logd.api.protocol import RESPONSE_HEAD, encode_request, raise_error
    from penstock.logd.client import Access

    host = job.address.rpartition(":")[0]
    access = Access(ca_file=job.ca_file or None, token=job.token or None)
    context, greeting = access.prepare(host)
    connection = _connect(job.address)
    if context is not None:
        connection = context.wrap_socket(connection, server_hostname=host)
    buffer = memoryview(bytearray(_BUFFER))

    def ask(request: dict[str, Any]) -> tuple[dict[str, Any], int]:
        connection.sendall(encode_request(request))
        _read_exactly(connection, buffer, RESPONSE_HEAD.size)
        header_length, length = RESPONSE_HEAD.unpack(buffer[: RESPONSE_HEAD.size])
        _read_exactly(connection, buffer, header_length)
        header = json.loads(bytes(buffer[:header_length]))
        raise_error(header)
        _read_exactly(connection, buffer, length)
        return header, length

    if greeting is not None:
        ask(greeting)
    request = {"api": "fetch", "stream": job.stream, "bytes_max": job.bytes_max, "wait_ms_max": 0}

    def run() -> Result:
        offset = taken = 0
        while offset < job.count:
            header, length = ask(request | {"offset": offset})
            offset, taken = header["next_offset"], taken + length
        return {"records": offset, "bytes": taken}

    return run


def _client(job: Job) -> Prepared:
    """logd's records as checked Arrow batches, by its own client."""
    from penstock.logd.client import LogClient

    log = LogClient(job.address)
    log.offsets(job.stream)

    def run() -> Result:
        records = taken = 0
        for header, batch in log.batches(job.stream, 0, job.count):
            records += batch.num_rows
            taken += header.body_length
        return {"records": records, "bytes": taken}

    return run


def _subscriber(job: Job) -> Prepared:
    """logd's records one by one, by Liftbridge's API; messages are counted, not parsed."""
    import grpc

    from tests.support.liftbridge import EARLIEST
    from tests.support.protobuf_bytes import encode

    channel = grpc.insecure_channel(job.address)
    grpc.channel_ready_future(channel).result(timeout=30)
    subscribe: Any = channel.unary_stream("/proto.API/Subscribe")

    def run() -> Result:
        messages = subscribe(encode({1: job.stream, 3: EARLIEST}))
        next(messages)  # empty: the subscription stands
        sizes = [len(message) for message in islice(messages, job.count)]
        messages.cancel()
        return {"records": len(sizes), "bytes": sum(sizes)}

    return run


def _raw(job: Job) -> Prepared:
    """Everything a raw copy sends."""
    buffer = memoryview(bytearray(_BUFFER))

    def run() -> Result:
        taken = 0
        with _connect(job.address) as connection:
            while count := connection.recv_into(buffer):
                taken += count
        return {"records": 0, "bytes": taken}

    return run


def _consumer(job: Job) -> Prepared:
    """A JetStream stream, by an ordered consumer: pushed, with flow control, not acked.

    Messages come as MSG; only what the server itself says has headers, and when that has a reply
    subject it is flow control and must be answered.
    """
    connection = Connection(job.address)
    inbox = b"_INBOX.read%d" % job.number
    connection.subscribe(inbox)
    begin = b"MSG %b " % job.subject.encode()
    config = {
        "deliver_subject": inbox.decode(),
        "deliver_policy": "all",
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": 5_000_000_000,
        "num_replicas": 1,
        "mem_storage": True,
    }
    create = json.dumps({"stream_name": job.stream, "config": config}).encode()
    api = b"$JS.API.CONSUMER.CREATE.%b" % job.stream.encode()

    def run() -> Result:
        connection.send(b"PUB %b _INBOX.none %d\r\n%b\r\n" % (api, len(create), create))
        records = taken = 0
        while records < job.count:
            data = connection.lines()
            records += data.count(begin)
            taken += len(data)
            if b"HMSG " in data:
                _answer_flow_control(connection, data)
        return {"records": records, "bytes": taken}

    return run


def _answer_flow_control(connection: Connection, data: bytes) -> None:
    for line in data.split(b"\r\n"):
        words = line.split(b" ")
        if words[0] == b"HMSG" and len(words) == 6:
            connection.send(b"PUB %b 0\r\n\r\n" % words[3])


def _counted(job: Job) -> Prepared:
    """A plain NATS subscriber that stores nothing, and answers what asks for an answer.

    What it reaches is what nats-server can pass on.
    """
    connection = Connection(job.address)
    connection.subscribe(job.subject.encode())
    begin = b"MSG %b 1 " % job.subject.encode()
    with_reply = re.compile(re.escape(begin) + rb"([^ ]+) \d+\r\n")

    def run() -> Result:
        records = taken = 0
        last_ns = perf_counter_ns()
        while records < job.count:
            try:
                data = connection.lines()
            except TimeoutError:
                break
            records += data.count(begin)
            taken += len(data)
            replies = with_reply.findall(data)
            if replies:
                connection.send(b"".join(b"PUB %b 2\r\n{}\r\n" % reply for reply in replies))
            last_ns = perf_counter_ns()
            if records:  # not after the server's first PING
                connection.socket.settimeout(_QUIET_S)
        return {"records": records, "bytes": taken, "ended_ns": last_ns}

    return run


KINDS: Final[dict[str, Callable[[Job], Prepared]]] = {
    "frames": _frames,
    "client": _client,
    "subscriber": _subscriber,
    "raw": _raw,
    "consumer": _consumer,
    "counted": _counted,
}


def main() -> None:
    """Do the job on standard input."""

    def prepare(document: dict[str, Any]) -> Prepared:
        job = Job(**document)
        return KINDS[job.kind](job)

    work(prepare)


if __name__ == "__main__":
    main()
