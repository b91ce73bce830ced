"""o. logd's endpoints beside its plain one: TLS, encryption at rest, permissions, Liftbridge's API.

One nats-server, and three logds that differ by their door only: one without anything, one with TLS,
one where callers have API keys and rules say who may read. The first one has the encrypted stream
and Liftbridge's API, too. Each door leads to a stream with the same records, in the page cache.

Fetching is read as in f, frames off the socket, counted and discarded; over TLS the reader decrypts
them, too. Liftbridge's API is used through grpc's own client, which is part of what is measured: an
application has no other. Its messages are made before, and what it is sent is counted, not parsed.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.logd.client import Access, calls
from penstock.logd.security.acl import AclRule, Action, Effect
from tests.bench.figures import Case
from tests.bench.harness import Bench
from tests.bench.reader import FETCH_BYTES
from tests.bench.reading import SIZE_BYTES, fill, read_job
from tests.bench.systems import LogdStream, NatsServer, settle, started
from tests.support.callers import Callers
from tests.support.certificates import Authority
from tests.support.encryption import section
from tests.support.identities import HOST
from tests.support.liftbridge import grpc_address
from tests.support.logd import Logd

TITLE = "logd's endpoints: TLS, encryption at rest, permissions, Liftbridge's API"
PLAIN = "plain"
TLS = "TLS"
SEALED = "encrypted at rest"
KNOWN = "API key and rules"
NATS = "NATS, answered"
CLIENT = "fetch client, Arrow"
GRPC = "Liftbridge's API"
FETCHES = {"8 MiB": FETCH_BYTES, "one frame": 1}
"""Bytes asked for at a time; a fetch that finds anything brings at least a frame."""

WINDOW = 64
SLOW = 20
"""Liftbridge's subscriber, which is sent record by record, reads that part of the records."""


@dataclass(frozen=True, slots=True)
class Door:
    """A way to a stream, and what a reader shows there."""

    name: str
    stream: LogdStream
    shown: dict[str, Any]


def run(bench: Bench) -> Iterator[Case]:
    """Fill all streams once, then go through the endpoints in turns."""
    count = bench.pick(1_000_000, 200_000, 4_000)
    with _listeners(bench.directory / "o") as (listeners, published):
        for door in listeners:
            bench.progress.step(f"o: filling: {door.name}")
            fill(bench, door.stream, count)
        settle([door.stream for door in listeners])
        for name, bytes_max in FETCHES.items():
            yield from _fetch(bench, listeners, name, bytes_max)
        yield from _publish(bench, published)
        yield from _subscribe(bench, listeners[0].stream, count)


def _fetch(bench: Bench, listeners: Sequence[Door], name: str, bytes_max: int) -> tuple[Case, Case]:
    compare = {door.name: (PLAIN,) for door in listeners[1:]}
    speed = Case("o", f"fetch, {name} at a time", "MiB/s", compare=compare)
    cost = Case("o", f"{speed.name}: CPU time", "µs/record", "lower", compare)
    for door, counts in bench.turns(f"o, {speed.name}", listeners):
        job = read_job(door.stream, door.stream.stored()) | door.shown
        ran = bench.read(door.stream, **job, bytes_max=bytes_max)
        if counts:
            speed.add(door.name, ran.rate("bytes") / 2**20)
            cost.add(door.name, ran.processor_us("records"))
    return speed, cost


def _publish(bench: Bench, stream: LogdStream) -> tuple[Case, Case]:
    compare = {GRPC: (NATS,)}
    speed = Case("o", f"publish, {WINDOW} in flight", "acked/s", compare=compare)
    cost = Case("o", f"{speed.name}: CPU time", "µs/record", "lower", compare)
    count = bench.pick(20_000, 5_000, 200)
    job = {"count": count, "size_bytes": SIZE_BYTES, "window": WINDOW}
    through: dict[str, Any] = {"url": grpc_address(stream.logd), "subject": stream.stream}
    ways = {
        NATS: partial(bench.publish, "acked", stream, **job),
        GRPC: partial(bench.publish, "liftbridge", stream, **job, **through),
    }
    for name, counts in bench.turns(f"o, {speed.name}", tuple(ways)):
        settle([stream])
        ran = ways[name]()
        if counts:
            speed.add(name, ran.rate("sent"))
            cost.add(name, ran.processor_us("sent"))
    return speed, cost


def _subscribe(bench: Bench, stream: LogdStream, count: int) -> tuple[Case, Case]:
    compare = {GRPC: (CLIENT,)}
    speed = Case("o", "reading", "records/s", compare=compare)
    cost = Case("o", f"{speed.name}: CPU time", "µs/record", "lower", compare)
    address = {"address": grpc_address(stream.logd)}
    jobs = {
        CLIENT: read_job(stream, count, "client"),
        GRPC: read_job(stream, count // SLOW, "subscriber") | address,
    }
    for name, counts in bench.turns(f"o, {speed.name}", tuple(jobs)):
        ran = bench.read(stream, **jobs[name])
        if counts:
            speed.add(name, ran.rate("records"))
            cost.add(name, ran.processor_us("records"))
    return speed, cost


@contextmanager
def _listeners(directory: Path) -> Iterator[tuple[list[Door], LogdStream]]:
    """The endpoints, the plain one first, and a stream to publish to; gone with the block."""
    with ExitStack() as stack:
        server = started(stack, NatsServer(directory / "nats"))

        def run_logd(
            place: str, streams: dict[str, dict[str, Any]], **options: Any
        ) -> dict[str, LogdStream]:
            configs = [{"name": name, "subject": name} | more for name, more in streams.items()]
            logd = stack.enter_context(Logd(directory / place, server.url, configs, **options))
            return {
                name: LogdStream(name, server.url, name, logd, server, name) for name in streams
            }

        authority = Authority(directory / "authority")
        certificate = authority.sign("logd", HOST)
        callers = Callers(directory / "callers", reader=())
        plain = run_logd(
            "plain",
            {"open": {}, "sealed": {"encryption": "aes-256-gcm"}, "published": {}},
            encryption=section(directory, "bench"),
            grpc={"listen": "127.0.0.1:0"},
        )
        secret = run_logd(
            "tls",
            {"secret": {}},
            tls={"cert_file": str(certificate.cert), "key_file": str(certificate.key)},
            access=Access(ca_file=authority.cert),
        )
        known = run_logd(
            "known", {"known": {}}, auth=callers.auth(), access=Access(token=callers.keys["root"])
        )
        _let_in(known["known"], "reader")
        yield (
            [
                Door(PLAIN, plain["open"], {}),
                Door(TLS, secret["secret"], {"ca_file": str(authority.cert)}),
                Door(SEALED, plain["sealed"], {}),
                Door(KNOWN, known["known"], {"token": callers.keys["reader"]}),
            ],
            plain["published"],
        )


def _let_in(stream: LogdStream, name: str) -> None:
    """Allow somebody to read a stream."""
    rule = AclRule(principal=name, effect=Effect.ALLOW, action=Action.READ, resource=stream.stream)
    with stream.logd.client() as root:
        root.ask(calls.put_acls([rule]))
