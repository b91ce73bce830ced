"""The console's process: listens, polls, and says of itself what every process says."""

import asyncio
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import click
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.http.server import (
    HttpServer,
    Peer,
    Request,
    RequestLimits,
    Response,
    ServerLimits,
)
from penstock.base.sockets import connections_within, join_host_port, split_host_port
from penstock.deploy.account.account import Account
from penstock.deploy.account.rows import Row, State
from penstock.deploy.console.actions import RouterClient
from penstock.deploy.console.authorizer import Authorizer
from penstock.deploy.console.config import ConsoleConfig, find_config
from penstock.deploy.console.history.recorder import Recorder
from penstock.deploy.console.poller import NameResolver, Poller
from penstock.deploy.console.rates import SECOND_NS, Rates
from penstock.deploy.console.search.searches import Searches
from penstock.deploy.console.specs.sampler import SpecSampler
from penstock.deploy.console.streams import Log, Streams
from penstock.deploy.console.view import View
from penstock.deploy.console.web import BODY_BYTES_MAX, LogAccess, Web
from penstock.logd.client import AsyncLogClient
from penstock.service import (
    ConfigError,
    Health,
    Status,
    Tracing,
    UnavailableError,
    admin_server,
    check_only,
    configure_logs,
    notify,
    release,
    run_until_stopped,
    span_metrics,
)

_OPEN_FILES_PART: Final = 2
CONNECTIONS_MAX: Final = 128
"""Connections at a time, each for one request."""

HANDSHAKE_S: Final = 5.0
"""Seconds for TLS to begin."""

WHOLE_S: Final = 30.0
"""Seconds that a connection may take."""

HEAD_BYTES_MAX: Final = 32 * 1024
"""Limit of a request's line and headers, in bytes."""

_RATE_WINDOW_NS: Final = 6 * SECOND_NS
_LOG_TIMEOUT_S: Final = 5.0
_STREAMS_INTERVAL: Final = 2
"""Streams are asked for once in so many intervals of polling."""


class ConsoleLog(LogAccess, Log, Protocol):
    """The part of `AsyncLogClient` that the console uses."""

    def close(self) -> None:
        """Close its connections."""
        ...


class Console:
    """One console.

    Args:
        config: Settings of the console.
        log: Asked instead of the logd that is configured.
        names: Resolver of the parts' addresses.

    Attributes:
        address: HOST:PORT where it serves; empty before.

    Raises:
        ConfigError: A file of the configuration cannot be used.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        log: ConsoleLog | None = None,
        *,
        names: NameResolver | None = None,
    ) -> None:
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
        self._polling = Poller(config, self._rates, self._clock, self._note, names)
        self._account = Account()
        self._tls = _context(config)
        authorizer = Authorizer(config, config.listen)
        self._view = View(
            self._polling, self._account, self._streams, self._rates, self._clock,
            started_ns=self._clock.unix_ns(), can_act=authorizer.acts,
        )  # fmt: skip
        self._tracing = Tracing(config.tracing, "console", config.listen)
        routers = RouterClient(config, self._polling.component_of)
        self._specs = SpecSampler(self._streams, self._polling, self._clock)
        self._recorder = Recorder(config.history, self._polling, self._streams, self._clock)
        self._searches = None if config.logd is None else Searches(config, self._clock)
        self._web = Web(
            authorizer,
            self._view,
            self._log,
            routers,
            self._specs.describe,
            self._recorder.read,
            self._searches,
            config.search,
            self._tracing.tracer,
        )
        self._server = self._make_server()
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
        host, port = split_host_port(config.listen)
        self._recorder.open()
        if config.admin is not None:
            self._admin.start(config.admin)
        self._server = self._make_server()  # more files may be open than when it was constructed
        try:
            port = await self._server.listen(host, port)
        except OSError as error:
            self._admin.close()
            raise UnavailableError(
                f"console: cannot listen on {config.listen}: {error.strerror}",
                fix="stop what uses the port, or name another with --listen",
            ) from None
        self.address = join_host_port(host, port)
        self._web.access = Authorizer(config, self.address)
        scheme = "http" if self._tls is None else "https"
        structlog.get_logger().info("ready", url=f"{scheme}://{self.address}/")
        self._health = Health.READY
        notify(READY=1)
        work = [asyncio.create_task(one.run()) for one in (self._polling, self._recorder)]
        if self._log is not None:
            pause_s = config.poll_interval_s * _STREAMS_INTERVAL
            follow = self._streams.follow(
                self._log, self._clock, pause_s, self._note, self._polling.pause
            )
            work.append(asyncio.create_task(follow))
            work.append(asyncio.create_task(self._specs.run(self._log)))
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([*work, stopping], return_when=asyncio.FIRST_COMPLETED)
        self._health = Health.DRAINING
        await self._server.close()
        for task in (*work, stopping):
            task.cancel()
        if self._searches is not None:
            await self._searches.close()
        if self._log is not None:
            self._log.close()
        await self._recorder.close()
        self._admin.close()
        await asyncio.to_thread(self._tracing.close)
        for task in done:
            task.result()  # what ended by itself failed

    def status(self) -> Status:
        """Return the console's own status; problems of the parts are theirs."""
        rows = [row.as_dict() for row in self._account.rows]
        info = {"tracing": self._tracing.counts(), "account": rows}
        return Status("console", "console", release(), self._health, info=info)

    def metrics(self) -> Iterable[Metric]:
        answers = CounterMetricFamily(
            "penstock_console_answers", "Answers to browsers, by HTTP status.", labels=["status"]
        )
        for status, count in dict(self._web.counts).items():
            answers.add_metric([str(status)], count)
        failures = CounterMetricFamily(
            "penstock_console_unanswered",
            "Requests of the console that a part did not answer.",
            labels=["part"],
        )
        for part, count in dict(self._polling.failures).items():
            failures.add_metric([part], count)
        refused = CounterMetricFamily(
            "penstock_console_tokens_refused", "Requests with a token that is wrong."
        )
        refused.add_metric([], self._web.access.refused)
        away = CounterMetricFamily(
            "penstock_console_connections_refused",
            "Connections refused because a bound on connections was reached.",
        )
        away.add_metric([], self._server.connections_refused)
        connections = GaugeMetricFamily(
            "penstock_console_connections", "Open connections of browsers."
        )
        connections.add_metric([], self._server.connections)
        unwritten = CounterMetricFamily(
            "penstock_console_history_write_failures",
            "Samples of the history that could not be written.",
        )
        unwritten.add_metric([], self._recorder.failures)
        series = GaugeMetricFamily(
            "penstock_console_history_series", "Figures that the history keeps."
        )
        series.add_metric([], len(self._recorder.history.columns))
        left_out = GaugeMetricFamily(
            "penstock_console_history_series_left_out",
            "Figures that the history does not keep because max_series are kept.",
        )
        left_out.add_metric([], self._recorder.history.left_out)
        history = (
            *_search_metrics(self._searches),
            unwritten,
            series,
            left_out,
            *_account_metrics(self._account.rows),
        )
        spans = span_metrics("console", self._tracing.counts())
        return answers, failures, refused, away, connections, *history, *spans

    def _note(self) -> None:
        self._view.note()

    def _make_server(self) -> HttpServer:
        request = RequestLimits(
            BODY_BYTES_MAX, HEAD_BYTES_MAX, request_s=WHOLE_S, first_byte_s=WHOLE_S
        )
        limits = ServerLimits(
            connections_within(CONNECTIONS_MAX, part=_OPEN_FILES_PART),
            connection_s=WHOLE_S,
            handshake_s=HANDSHAKE_S,
            request=request,
        )
        context = self._tls
        return HttpServer(self._answer, limits, tls=None if context is None else lambda: context)

    async def _answer(self, request: Request, peer: Peer) -> Response:
        return await self._web.answer(request, str(peer.address))


def _search_metrics(searches: Searches | None) -> Iterable[Metric]:
    ended = CounterMetricFamily(
        "penstock_console_searches",
        "Searches that ended, or were refused because too many ran, by result.",
        labels=["result"],
    )
    if searches is not None:
        for result, count in searches.ended.items():
            ended.add_metric([result], count)
        ended.add_metric(["refused"], searches.refused)
    running = GaugeMetricFamily("penstock_console_searches_running", "Searches that run now.")
    running.add_metric([], 0 if searches is None else searches.running)
    return ended, running


def _account_metrics(rows: Iterable[Row]) -> Iterable[GaugeMetricFamily]:
    records = GaugeMetricFamily(
        "penstock_console_account_records",
        "Records in a row of the account, by where they came from (`came`) and what became of them"
        " (`went`).",
        labels=("stage", "part", "side", "count"),
    )
    difference = GaugeMetricFamily(
        "penstock_console_account_difference_records",
        "Records that a row of the account lacks; negative: it has too many.",
        labels=("stage", "part"),
    )
    state = GaugeMetricFamily(
        "penstock_console_account_state",
        "The state of a row of the account: 1 for the current state, 0 for the others.",
        labels=("stage", "part", "state"),
    )
    for row in rows:
        for side, counts in (("came", row.came), ("went", row.went)):
            for name, count in counts.items():
                records.add_metric((row.stage, row.part, side, name), count)
        difference.add_metric((row.stage, row.part), row.difference)
        for one in State:
            state.add_metric((row.stage, row.part, one), one is row.state)
    return records, difference, state


class ConsoleMetrics(Collector):
    """A console's counters, read when they are scraped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    def collect(self) -> Iterable[Metric]:
        return self._console.metrics()


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


def run_console(
    *, config_path: Path | None, directory: Path | None, listen: str | None, check: bool
) -> None:
    """Serve the console until it is stopped.

    Raises:
        ConfigError: The configuration cannot be used.
        UnavailableError: Nothing runs in the directory, or the port is taken.
    """
    config = find_config(config_path, directory, listen)
    if check:
        click.echo(check_only(config, config_path or Path("the command line")), nl=False)
        return
    configure_logs("console")
    run_until_stopped(Console(config).run)
