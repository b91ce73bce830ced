"""`penstock up` and `penstock demo`: prepare a directory, run the parts, say how it ended."""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from penstock.base.clock import Clock, SystemClock
from penstock.base.errors import ExitCode, ServiceError
from penstock.deploy.checks import free_bytes
from penstock.deploy.disk_room import SAMPLE_S, Sample, note_sample
from penstock.deploy.up.layout import (
    Layout,
    address_lines,
    claimed,
    default_root,
    write_ports_from,
    write_running,
)
from penstock.deploy.up.monitor import Monitor
from penstock.deploy.up.overlay import launcher_settings
from penstock.deploy.up.preflight import (
    example_app,
    read_overlay,
    require_launch,
    require_writable,
)
from penstock.deploy.up.progress import Screen
from penstock.deploy.up.supervision import AllReady, CutShort, Effect, GaveUp, Restarting, StartPart
from penstock.deploy.up.supervisor import Supervisor
from penstock.deploy.up.topology import (
    Topology,
    addresses,
    launch_topology,
    parts,
    write_configs,
)
from penstock.service.logs import configure_logs, unfailing
from penstock.service.process import LoopFailures, raise_open_files

if TYPE_CHECKING:
    from penstock.deploy.up.demo.failover import Failover

_LOG_LINES_SHOWN = 8
_FOREVER_S = 60
"""Seconds that a demo without an end counts as, where the middle of it is asked for."""
_STRIKE_NODES_MIN = 3
"""Fewer nodes have no majority without one of them."""


@dataclass(slots=True)
class Outcome:
    """The result of a launch.

    Attributes:
        gave_up: The part that ended the launch before it was ready.
        cut_short: Parts that did not finish in time while draining.
        restarts: Number of restarts of each part.
        killed: A second Ctrl-C, so nothing was drained.
        app_started: The example app was started, which needs all other parts.
        failover: Result of the kill of a leader.
    """

    gave_up: GaveUp | None = None
    cut_short: list[CutShort] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    killed: bool = False
    app_started: bool = False
    failover: "Failover | None" = None


class LaunchFailedError(ServiceError):
    """A part could not be started; carries the part's own exit code where it has a meaning.

    Args:
        layout: The launch's directory.
        cause: The part that ended, and how.
        has_settings: Whether the parts' configurations have settings of the user's in them.
    """

    def __init__(self, layout: Layout, cause: GaveUp, *, has_settings: bool = False) -> None:
        log = layout.log(cause.name)
        what = "was not ready in time" if cause.code is None else f"ended with {cause.code}"
        shown = "\n".join(f"    {line}" for line in _last_lines(log))
        where = ""
        if has_settings and cause.code == ExitCode.CONFIG:
            written = layout.config / f"{cause.name}.yaml"
            where = f" in the file given with --config: each start writes {written} from it"
        super().__init__(
            f"{cause.name} {what}; its log ends with:\n{shown}",
            fix=f"correct what its log says{where}; the whole log is {log}",
        )
        meaningful = (ExitCode.CONFIG, ExitCode.UNAVAILABLE)
        self.exit_code = ExitCode(cause.code) if cause.code in meaningful else ExitCode.UNAVAILABLE


def launch_up(
    *,
    directory: Path | None,
    config_path: Path | None,
    nats_url: str | None,
    nodes: int,
    any_free: bool,
    ports_from: int | None,
) -> None:
    """Run the pipeline until it is stopped."""
    overlay = {} if config_path is None else read_overlay(config_path)
    layout = Layout((directory or default_root()).absolute())
    with claimed(layout):
        topology = launch_topology(
            layout,
            nats_url=nats_url,
            nodes=nodes,
            any_free=any_free,
            ports_from=ports_from,
            overlay=overlay,
        )
        plan = ["Ctrl-C drains and stops them", *address_lines(addresses(topology))]
        screen = Screen(layout, steady=True, plan=plan)
        prepare(topology, screen)
        if topology.ports_from is not None:
            write_ports_from(layout, topology.ports_from)
        outcome, _ = run(topology, screen, seconds=None)
    if outcome.killed or outcome.cut_short:
        sys.exit(ExitCode.TEMPORARY)


def launch_demo(
    *,
    seconds: int,
    forever: bool,
    directory: Path | None,
    nats_url: str | None,
    nodes: int,
    json_path: Path | None,
) -> None:
    """Run the pipeline with the example app, then check that everything arrived.

    In a cluster the node that leads the busiest stream is killed when half of the time is over.
    """
    if json_path is not None:
        require_writable(json_path)
    layout = Layout((directory or Path(".work/demo")).absolute())
    with claimed(layout):
        topology = replace(
            launch_topology(layout, nats_url=nats_url, nodes=nodes, any_free=True),
            app=example_app(layout),
        )
        until = "until Ctrl-C" if forever else f"for {seconds} s"
        screen = Screen(layout, plan=[f"collecting {until}"])
        prepare(topology, screen)
        outcome, watch = run(topology, screen, seconds=None if forever else seconds)
        if outcome.killed:
            sys.exit(ExitCode.TEMPORARY)
        if not outcome.app_started:
            screen.say("stopped before all parts were ready: there is nothing to verify")
            sys.exit(ExitCode.TEMPORARY)
        from penstock.deploy.up.demo.report import conclude

        sys.exit(
            conclude(
                topology, screen, outcome.restarts, outcome.failover, watch, json_path=json_path
            )
        )


def prepare(topology: Topology, screen: Screen) -> None:
    """Check what a launch needs, show the warnings, and write its configuration files.

    Raises:
        NotStartedError: Something keeps it from working.
    """
    for one in require_launch(topology):
        screen.say(f"warning: {one.about}: {one.found} ({one.fix})", "yellow")
    write_configs(topology)


def run(topology: Topology, screen: Screen, *, seconds: int | None) -> tuple[Outcome, Monitor]:
    """Run a launch to its end, drained.

    Raises:
        LaunchFailedError: A part ended before it was ready.
    """
    layout = topology.layout
    watch = Monitor(topology)
    with closing(unfailing(layout.log("launcher").open("a", encoding="utf-8"))) as log:
        configure_logs("launcher", stream=log)
        structlog.get_logger().info(
            "launching", directory=str(layout.root), nats=topology.nats_shown()
        )
        raise_open_files()  # of the parts, too, which inherit it
        outcome = asyncio.run(_run(topology, watch, screen, seconds))
        structlog.get_logger().info("stopped", restarts=outcome.restarts)
    if outcome.gave_up is not None:
        raise LaunchFailedError(layout, outcome.gave_up, has_settings=bool(topology.overlay))
    return outcome, watch


async def _run(topology: Topology, watch: Monitor, screen: Screen, seconds: int | None) -> Outcome:
    asyncio.get_running_loop().set_exception_handler(LoopFailures())
    outcome, clock = Outcome(), SystemClock()

    def note_running(*, ready: bool = False) -> None:
        write_running(
            topology.layout,
            dict(topology.admin_urls()),
            cluster=topology.log_servers() if topology.nodes > 1 else None,
            logd=topology.log_servers(),
            addresses=addresses(topology),
            ready=ready,
        )

    def note_ready() -> None:
        try:
            note_running(ready=True)
        except OSError as error:  # a full disk is when the parts need their launcher most
            structlog.get_logger().warning("running_file_write_failed", reason=str(error))

    report = _Report(screen, outcome, note_ready)
    supervisor = Supervisor(
        parts(topology, logd_ready=watch.logd_ready, router_caught_up=watch.router_caught_up),
        topology.drain_order(),
        clock=clock,
        report=report,
        log_max_bytes=launcher_settings(topology.overlay).log_max_bytes,
    )
    _on_signals(supervisor, screen, outcome)
    note_running()
    struck = asyncio.Event()

    async def stop_in_time() -> None:
        if seconds is not None:
            await report.ready.wait()
            screen.count_down(seconds)
            await asyncio.sleep(seconds)
            await struck.wait()
            supervisor.stop()

    async def strike() -> None:
        if topology.app is not None and topology.nodes >= _STRIKE_NODES_MIN:
            await report.ready.wait()
            await asyncio.sleep((seconds or _FOREVER_S) / 2)
            from penstock.deploy.up.demo.failover import kill_leader

            outcome.failover = await kill_leader(topology, supervisor, watch, screen, clock)
        struck.set()

    with screen:
        async with asyncio.TaskGroup() as tasks:
            beside = [stop_in_time(), strike(), _note_room(topology.layout, clock)]
            if screen.shows_progress:
                beside.append(_follow(watch, screen, supervisor))
            running = [tasks.create_task(work) for work in beside]
            await supervisor.run()
            for task in running:
                task.cancel()
    return outcome


class _Report:
    """Takes every effect of supervision: shows it, and notes what counts at the end.

    Attributes:
        ready: Every part has been ready.
    """

    def __init__(self, screen: Screen, outcome: Outcome, on_ready: Callable[[], None]) -> None:
        self.ready = asyncio.Event()
        self._on_ready = on_ready
        self._screen = screen
        self._outcome = outcome

    def __call__(self, effect: Effect) -> None:
        self._screen.tell(effect)
        outcome = self._outcome
        match effect:
            case GaveUp():
                outcome.gave_up = effect
            case CutShort():
                outcome.cut_short.append(effect)
            case Restarting(name):
                outcome.restarts[name] = outcome.restarts.get(name, 0) + 1
            case StartPart("app"):
                outcome.app_started = True
            case AllReady():
                self._on_ready()  # after the screen: `up --detach` shows what it says, then ends
                self.ready.set()
            case _:
                pass


async def _follow(watch: Monitor, screen: Screen, supervisor: Supervisor) -> None:
    """Keep the screen and the last known figures of each part up to date."""
    while True:
        await watch.refresh()
        screen.show({name: supervisor.phase(name) for name in watch.names}, watch.statuses)
        await asyncio.sleep(screen.interval_s)


async def _note_room(layout: Layout, clock: Clock) -> None:
    """Note the free room of the disk from time to time, for `penstock status`."""
    while True:
        try:
            sample = Sample(clock.unix_ns() // 10**9, free_bytes(layout.root))
            note_sample(layout.room, sample)
        except OSError as error:  # it is full, or gone: see `note_ready`
            structlog.get_logger().warning("disk_sample_write_failed", reason=str(error))
        await asyncio.sleep(SAMPLE_S)


def _on_signals(supervisor: Supervisor, screen: Screen, outcome: Outcome) -> None:
    """The first SIGINT or SIGTERM drains, the second kills."""
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            outcome.killed = True
            screen.say("killing everything")
            supervisor.kill()
        else:
            asked = True
            screen.say("stopping: draining what was accepted; press Ctrl-C again to kill")
            supervisor.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)


def _last_lines(path: Path) -> list[str]:
    if not path.exists():
        return ["(no log was written)"]
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        return file.read().decode(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
