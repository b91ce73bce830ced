"""`penstock up` and `penstock demo`: prepare a directory, run the parts, say how it ended."""

import asyncio
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from penstock.deploy.core.supervision import (
    AllReady,
    CutShort,
    Effect,
    GaveUp,
    Restarting,
    StartPart,
)
from penstock.deploy.layout import Layout, claimed, default_root, write_running
from penstock.deploy.ports import DEFAULT_PORTS, choose_ports
from penstock.deploy.preflight import example_app, require_java, require_nats, require_writable
from penstock.deploy.progress import Screen
from penstock.deploy.supervisor import Supervisor
from penstock.deploy.topology import Topology, parts, write_configs
from penstock.deploy.watch import Watch
from penstock.service.clock import SystemClock
from penstock.service.errors import ExitCode, ServiceError
from penstock.service.logs import configure_logs
from penstock.specs.app import SOCKET_VARIABLE

_LOG_LINES_SHOWN = 8


@dataclass(slots=True)
class Outcome:
    """How a launch went.

    Attributes:
        gave_up: The part that ended the launch before it was ready.
        cut_short: What did not finish in time while draining.
        restarts: How often each part was started again.
        killed: A second Ctrl-C, so nothing was drained.
        app_started: The example app was started, which needs all other parts.
    """

    gave_up: GaveUp | None = None
    cut_short: list[CutShort] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    killed: bool = False
    app_started: bool = False


class LaunchFailedError(ServiceError):
    """A part could not be started; carries the part's own exit code where it has a meaning."""

    def __init__(self, layout: Layout, cause: GaveUp) -> None:
        log = layout.log(cause.name)
        what = "was not ready in time" if cause.code is None else f"ended with {cause.code}"
        shown = "\n".join(f"    {line}" for line in _last_lines(log))
        super().__init__(
            f"{cause.name} {what}; its log ends with:\n{shown}",
            fix=f"see above, or the whole log: {log}",
        )
        meaningful = (ExitCode.CONFIG, ExitCode.UNAVAILABLE)
        self.exit_code = ExitCode(cause.code) if cause.code in meaningful else ExitCode.UNAVAILABLE


def launch_up(*, directory: Path | None, nats_url: str | None, free_ports: bool) -> None:
    """Run the pipeline until it is stopped."""
    layout = Layout((directory or default_root()).absolute())
    with claimed(layout):
        topology = prepare(layout, nats_url=nats_url, any_free=free_ports)
        screen = Screen(layout, steady=True, plan=_what_to_know(topology))
        outcome, _ = run(topology, screen, seconds=None)
    if outcome.killed or outcome.cut_short:
        sys.exit(ExitCode.TEMPORARY)


def _what_to_know(topology: Topology) -> list[str]:
    server = topology.address("logd_fetch")
    option = "" if server.endswith(f":{DEFAULT_PORTS['logd_fetch']}") else f" --server {server}"
    return [
        "Ctrl-C drains and stops them",
        f"  apps     {SOCKET_VARIABLE}={topology.layout.socket}",
        f"  fluent   {topology.address('forward')}",
        f"  nats     {topology.nats_shown()}",
        f"  look     penstock logd tail logs --follow{option}",
        f"  files    {topology.layout.lake}",
    ]


def launch_demo(
    *,
    seconds: int,
    forever: bool,
    directory: Path | None,
    nats_url: str | None,
    json_path: Path | None,
) -> None:
    """Run the pipeline with the example app, then check that everything arrived."""
    from penstock.deploy.demo import conclude

    if json_path is not None:
        require_writable(json_path)
    layout = Layout((directory or Path(".work/demo")).absolute())
    with claimed(layout):
        topology = prepare(layout, nats_url=nats_url, any_free=True, with_app=True)
        until = "until Ctrl-C" if forever else f"for {seconds} s"
        screen = Screen(layout, plan=[f"collecting {until}"])
        outcome, watch = run(topology, screen, seconds=None if forever else seconds)
        if outcome.killed:
            sys.exit(ExitCode.TEMPORARY)
        if not outcome.app_started:
            screen.say("stopped before all parts were ready: there is nothing to verify")
            sys.exit(ExitCode.TEMPORARY)
        sys.exit(conclude(topology, screen, outcome.restarts, watch, json_path))


def prepare(
    layout: Layout, *, nats_url: str | None, any_free: bool, with_app: bool = False
) -> Topology:
    """Check what the launch needs and write its configuration files."""
    require_java(layout)
    if nats_url is not None:
        require_nats(nats_url)
    absent = frozenset({"nats", "nats_monitor"} if nats_url else ())
    topology = Topology(
        layout,
        choose_ports(any_free=any_free, without=absent),
        nats_url=nats_url,
        app=example_app(layout) if with_app else None,
    )
    write_configs(topology)
    return topology


def run(topology: Topology, screen: Screen, *, seconds: int | None) -> tuple[Outcome, Watch]:
    """Run a launch to its end, drained.

    Raises:
        LaunchFailedError: A part ended before it was ready.
    """
    layout = topology.layout
    watch = Watch(topology)
    with layout.log("launcher").open("a", encoding="utf-8") as log:
        configure_logs("launcher", stream=log)
        structlog.get_logger().info(
            "launching", directory=str(layout.root), nats=topology.nats_shown()
        )
        outcome = asyncio.run(_run(topology, watch, screen, seconds))
        structlog.get_logger().info("stopped", restarts=outcome.restarts)
    if outcome.gave_up is not None:
        raise LaunchFailedError(layout, outcome.gave_up)
    return outcome, watch


async def _run(topology: Topology, watch: Watch, screen: Screen, seconds: int | None) -> Outcome:
    outcome = Outcome()
    loop = asyncio.get_running_loop()

    def report(effect: Effect) -> None:
        screen.tell(effect)
        match effect:
            case GaveUp():
                outcome.gave_up = effect
            case CutShort():
                outcome.cut_short.append(effect)
            case Restarting(name):
                outcome.restarts[name] = outcome.restarts.get(name, 0) + 1
            case StartPart("app"):
                outcome.app_started = True
            case AllReady() if seconds is not None:
                screen.count_down(seconds)
                loop.call_later(seconds, supervisor.stop)
            case _:
                pass

    supervisor = Supervisor(
        parts(topology, logd_ready=watch.logd_is_ready, router_caught_up=watch.router_caught_up),
        topology.drain_order(),
        clock=SystemClock(),
        report=report,
    )
    _on_signals(supervisor, screen, outcome)
    write_running(topology.layout, dict(topology.admin_urls()))
    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(_follow(watch, screen, supervisor))
        await supervisor.run()
        followed.cancel()
    return outcome


async def _follow(watch: Watch, screen: Screen, supervisor: Supervisor) -> None:
    """Keep the screen and the last known figures of each part up to date."""
    with screen:
        while True:
            await watch.refresh()
            screen.show({name: supervisor.phase(name) for name in watch.names}, watch.statuses)
            await asyncio.sleep(screen.interval_s)


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
