"""Faults of one process, and of the NATS server beside it.

Whatever runs as a single Penstock process can be met by them: see `OneProcess`.
"""

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.harness.plan import Run
from tests.support.nats_server import RestartableNatsServer
from tests.support.processes import Daemon


class OneProcess(Protocol):
    """A system whose one process is met by faults; it is started again by its `recover`."""

    run: Run
    nats: RestartableNatsServer

    @property
    def daemon(self) -> Daemon: ...

    def start(self) -> None: ...


def kill_daemon(daemon: Daemon, run: Run) -> None:
    """SIGKILL; a process that had ended by itself broke a promise."""
    code = daemon.kill()
    run.report.counts[f"exit: {daemon.component} {code}"] += 1
    run.demand(
        code == -signal.SIGKILL,
        f"{daemon.component} had ended by itself with {code}: {daemon.log()[-3000:]}",
    )


def stop_daemon(daemon: Daemon, run: Run, *, within_s: float = 30.0) -> None:
    """SIGTERM, and a drain that succeeds."""
    code = daemon.stop(within_s=within_s)
    run.report.counts[f"exit: {daemon.component} {code}"] += 1
    run.demand(code == 0, f"{daemon.component} ended with {code}: {daemon.log()[-3000:]}")


def kill(system: OneProcess) -> str:
    kill_daemon(system.daemon, system.run)
    system.run.report.counts["kill -9"] += 1
    return "kill -9"


def kill_again_while_it_starts(system: OneProcess, longest_s: float, *, least_s: float = 0) -> str:
    """Launch what was killed, and kill it at some time, ready or not."""
    system.daemon.launch()
    system.run.pause_between(least_s, longest_s)
    kill_daemon(system.daemon, system.run)
    system.run.report.counts["kill -9 while starting"] += 1
    return "kill -9 while starting"


def freeze_for_a_while(system: OneProcess) -> str:
    """SIGSTOP for the seconds of `--frozen`."""
    freeze([system.daemon.pid])
    system.run.pause(system.run.options.frozen)
    thaw([system.daemon.pid])
    system.run.report.counts["SIGSTOP"] += 1
    return "SIGSTOP"


def stop_and_start(system: OneProcess) -> str:
    stop_daemon(system.daemon, system.run)
    system.start()
    system.run.report.counts["SIGTERM"] += 1
    return "SIGTERM"


def kill_nats(system: OneProcess) -> str:
    return _restart_nats(system, signal.SIGKILL)


def stop_nats(system: OneProcess) -> str:
    return _restart_nats(system, signal.SIGTERM)


def _restart_nats(system: OneProcess, number: signal.Signals) -> str:
    code = system.nats.end(number)
    system.run.report.counts[f"exit: nats-server {code}"] += 1
    system.run.pause_between(0.0, 0.3)
    system.nats.start()
    return f"nats-server {number.name}"


def freeze(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def thaw(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def tear_tail(directory: Path, rng: random.Random) -> bool:
    """Put half a frame at the end of a log, as a process leaves it that dies in a write."""
    segments = sorted(directory.glob("*.log"))
    if not segments or not segments[-1].stat().st_size:
        return False
    data = segments[-1].read_bytes()
    with segments[-1].open("ab") as file:
        file.write(data[: rng.randint(1, min(len(data), 300))])
    return True
