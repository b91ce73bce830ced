"""The console's process: listens, polls, and says of itself what every process says."""

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.collector.budget import Budget
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.sources.http_server import Request, Response, serve_http
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.door import Door
from penstock.deploy.console.letters import RouterDoors
from penstock.deploy.console.polling import Polling
from penstock.deploy.console.streams import Log, Streams
from penstock.deploy.console.view import View
from penstock.deploy.console.web import BODY_BYTES_MAX, LogAccess, Web
from penstock.deploy.core.rates import SECOND_NS, Rates
from penstock.logd.client import AsyncLogClient
from penstock.service import (
    ACCEPT_AT_ONCE,
    ConfigError,
    Health,
    Status,
    Tracing,
    UnavailableError,
    admin_server,
    connections_within,
    notify,
    release,
    span_metrics,
    widen_backlog,
)
from penstock.service.config import join_host_port, split_host_port

_OPEN_FILES_PART: Final = 2
CONNECTIONS_MAX: Final = 128
"""At a time, each for one request. Beyond that the first goes that has asked for nothing yet; when
all have asked, the new one is closed."""

HANDSHAKE_S: Final = 5.0
"""Seconds for TLS to begin."""

WHOLE_S: Final = 30.0
"""Seconds that a connection may take."""

_RATE_WINDOW_NS: Final = 6 * SECOND_NS
_LOG_TIMEOUT_S: Final = 5.0
_STREAMS_INTERVAL: Final = 2
"""Streams are asked for once in so many intervals of polling."""


class ConsoleLog(LogAccess, Log, Protocol):
    """What the console needs of `AsyncLogClient`."""

    def close(self) -> None:
        """Close its connections."""
        ...


class Console:
    """One console.

    Args:
        config: What it shows, and to whom.
        log: Asked instead of the logd that is configured.

    Attributes:
        address: HOST:PORT where it serves; empty before.

    Raises:
        ConfigError: A file of the configuration cannot be used.
    """

    def __init__(self, config: ConsoleConfig, log: ConsoleLog | None = None) -> None:
        self.address = ""
        self._config = config
        self._clock = SystemClock()
        self._rates = Rates(_RATE_WINDOW_NS)
        self._streams = Streams(self._rates)
        if log is None and config.logd is not None:
            access = config.access.access()
            log = AsyncLogClient(config.logd, timeout_s=_LOG_TIMEOUT_S, access=access)
        self._log = log
        if log is None:
            self._streams.problem = "the console knows no logd; see its key `logd`"
        self._polling = Polling(config, self._rates, self._clock, self._note)
        self._connections = 0
        self._connections_max = CONNECTIONS_MAX
        self._serving: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}  # in the order in which they came
        self._turned_away = 0
        bodies = CONNECTIONS_MAX * BODY_BYTES_MAX  # each connection's, so there is always room
        self._bodies = Budget(bytes_max=bodies, share_bytes_max=bodies).share("console")
        self._tls = _context(config)
        door = Door(config, config.listen)
        self._view = View(
            self._polling, self._streams, self._rates, self._clock,
            started_ns=self._clock.unix_ns(), can_act=door.acts,
        )  # fmt: skip
        self._tracing = Tracing(config.tracing, "console", config.listen)
        doors = RouterDoors(config, self._polling.component_of)
        self._web = Web(door, self._view, self._log, doors, self._tracing.tracer)
        self._health = Health.STARTING
        registry = CollectorRegistry()
        registry.register(ConsoleMetrics(self))
        self._admin = admin_server(self.status, registry, config.admin_access, hosts=config.hosts)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`.

        Raises:
            UnavailableError: It cannot listen where it should.
        """
        config = self._config
        self._connections_max = connections_within(CONNECTIONS_MAX, part=_OPEN_FILES_PART)
        host, port = split_host_port(config.listen)
        if config.admin is not None:
            self._admin.start(config.admin)
        try:
            server = await asyncio.start_server(self._come, host, port, backlog=ACCEPT_AT_ONCE)
            widen_backlog(server)
        except OSError as error:
            self._admin.close()
            raise UnavailableError(
                f"console: cannot listen on {config.listen}: {error.strerror}",
                fix="stop what uses the port, or name another with --listen",
            ) from None
        self.address = join_host_port(host, server.sockets[0].getsockname()[1])
        self._web.door = Door(config, self.address)
        scheme = "http" if self._tls is None else "https"
        structlog.get_logger().info("console serves", url=f"{scheme}://{self.address}/")
        self._health = Health.READY
        notify(READY=1)
        work = [asyncio.create_task(self._polling.run())]
        if self._log is not None:
            pause_s = config.poll_interval_s * _STREAMS_INTERVAL
            follow = self._streams.follow(self._log, self._clock, pause_s, self._note)
            work.append(asyncio.create_task(follow))
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([*work, stopping], return_when=asyncio.FIRST_COMPLETED)
        self._health = Health.DRAINING
        server.close()
        for task in (*work, stopping):
            task.cancel()
        if self._log is not None:
            self._log.close()
        self._admin.close()
        await asyncio.to_thread(self._tracing.close)
        for task in done:
            task.result()  # what ended by itself failed

    def status(self) -> Status:
        """Its account of itself; what is wrong with the parts is theirs."""
        info = {"tracing": self._tracing.counts()}
        return Status("console", "console", release(), self._health, info=info)

    def metrics(self) -> Iterable[Metric]:
        """For Prometheus."""
        answers = CounterMetricFamily(
            "penstock_console_answers", "Answers to browsers, by status code", labels=["status"]
        )
        for status, count in dict(self._web.counts).items():
            answers.add_metric([str(status)], count)
        failures = CounterMetricFamily(
            "penstock_console_unanswered", "Questions that a part did not answer", labels=["part"]
        )
        for part, count in dict(self._polling.failures).items():
            failures.add_metric([part], count)
        refused = CounterMetricFamily("penstock_console_tokens_refused", "Tokens that were wrong")
        refused.add_metric([], self._web.door.refused)
        away = CounterMetricFamily(
            "penstock_console_connections_turned_away", "Connections beyond what there may be"
        )
        away.add_metric([], self._turned_away)
        connections = GaugeMetricFamily("penstock_console_connections", "Connections of browsers")
        connections.add_metric([], self._connections)
        spans = span_metrics("console", self._tracing.counts())
        return answers, failures, refused, away, connections, *spans

    def _note(self) -> None:
        self._view.note()

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection is there; it shakes hands as one of those that there may be."""
        if self._tls is not None:
            _transport_of(writer).pause_reading()  # what comes is for TLS, once that has begun
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= self._connections_max:
            self._turned_away += 1
            if not self._silent:
                writer.close()
                return
            first = next(iter(self._silent))
            del self._silent[first]
            first.transport.abort()
        self._connections += 1
        self._silent[writer] = None
        peer = str(writer.get_extra_info("peername"))
        answer = partial(self._answer, writer, peer)
        served = (reader, writer) if self._tls is None else None
        try:
            async with asyncio.timeout(WHOLE_S):
                if self._tls is not None:
                    served = await _shake_hands(writer, self._tls)
                assert served is not None
                await serve_http(*served, answer, body_bytes_max=BODY_BYTES_MAX, share=self._bodies)
        except (OSError, RemoteProtocolError):  # a TimeoutError is an OSError
            structlog.get_logger().debug("a connection broke", peer=peer)
        finally:
            self._connections -= 1
            self._silent.pop(writer, None)
            if served is not None:
                served[1].close()
                with suppress(OSError):
                    await served[1].wait_closed()
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, peer: str, request: Request) -> Response:
        """Answer; whoever has asked is not sent away for another."""
        self._silent.pop(writer, None)
        return await self._web.answer(request, peer)


class ConsoleMetrics(Collector):
    """A console's counters, read when they are scraped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    def collect(self) -> Iterable[Metric]:
        return self._console.metrics()


def _transport_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    assert isinstance(writer.transport, asyncio.Transport)
    return writer.transport


async def _shake_hands(
    plain: asyncio.StreamWriter, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The connection, with TLS on it.

    Not `StreamWriter.start_tls`, which in Python 3.11 leaves a writer without a transport when the
    connection ends meanwhile.

    Raises:
        OSError: It broke, or took too long.
    """
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    secured = await loop.start_tls(
        _transport_of(plain),
        protocol,
        context,
        server_side=True,
        ssl_handshake_timeout=HANDSHAKE_S,
    )
    if secured is None:
        raise ConnectionResetError("the connection ended before hands were shaken")
    protocol.connection_made(secured)
    return reader, asyncio.StreamWriter(secured, protocol, reader, loop)


def _context(config: ConsoleConfig) -> ssl.SSLContext | None:
    if config.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls.cert_file, config.tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls: {config.tls.cert_file}: {error}", fix="name a PEM certificate and its key"
        ) from None
    return context
