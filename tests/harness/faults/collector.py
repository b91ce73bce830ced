"""Ends of a collector without a drain: at random, at a named place, while it recovers."""

import signal
from collections.abc import Iterator
from typing import Final

from penstock.collector import failpoints
from tests.harness.faults import process
from tests.harness.systems.collector import START_S, CollectorUnderLoad
from tests.support.waiting import wait_until

_DRAINING: Final = ("drain_begun", "drain_ended")
_RELOADING: Final = ("reload_before_exchange", "reload_after_exchange")
_PASSAGES_MAX: Final = {"recovery_before_checkpoint": 1, "recovery_after_checkpoint": 1,
                        "spool_before_delete": 4, "spool_after_delete": 4,
                        **dict.fromkeys((*_DRAINING, *_RELOADING), 1)}  # fmt: skip
_RELOAD_SHARE: Final = 0.3


def kill(it: CollectorUnderLoad) -> str:
    """kill -9 at any time, also while it exchanges its configuration."""
    if it.run.rng.random() < _RELOAD_SHARE:
        it.ask_for_reload()
    it.run.pause_between(0.005, 0.5)
    return process.kill(it)


def kill_in_recovery(it: CollectorUnderLoad) -> str:
    told = process.kill(it)
    longest_s = max(0.2, *it.run.report.times_s["collector ready"])
    it.deaths += 1
    return f"{told}, {process.kill_again_while_it_starts(it, longest_s)}"


class Failpoints:
    """Ends a collector at a named place, one after another.

    Args:
        first: Those that come first; then all come in some order, again and again.
        wait_s: From ready; a place that is not passed in this time is given up.
    """

    def __init__(self, it: CollectorUnderLoad, first: list[str], wait_s: float) -> None:
        self._names = self._draw(it, first)
        self._wait_s = wait_s

    def __call__(self, it: CollectorUnderLoad) -> str:
        """Arm the next one, start it again, and wait until it ends the process; else kill that."""
        name, daemon = next(self._names), it.daemon
        process.kill(it)
        it.deaths += 1
        it.launch(f"{name}:{it.run.rng.randint(1, _PASSAGES_MAX.get(name, 12))}")
        daemon.wait_until_ready_or_dead(within_s=START_S)
        if name in _DRAINING:
            return self._fired(it, name, daemon.stop(within_s=START_S))
        if name in _RELOADING:
            it.ask_for_reload()
        deadline_s = it.run.elapsed_s + self._wait_s
        wait_until(
            lambda: not daemon.running or it.run.elapsed_s > deadline_s, within_s=self._wait_s + 60
        )
        if daemon.running:
            return f"{name} was not passed, {process.kill(it)}"
        return self._fired(it, name, daemon.wait(within_s=5))

    def _fired(self, it: CollectorUnderLoad, name: str, code: int) -> str:
        """It ended by itself, which it does at the failpoint and nowhere else."""
        it.run.demand(
            code == -signal.SIGKILL, f"the collector ended with {code} on the way to {name}"
        )
        it.run.report.counts[f"fired: {name}"] += 1
        return f"ended at {name}"

    @staticmethod
    def _draw(it: CollectorUnderLoad, first: list[str]) -> Iterator[str]:
        yield from first
        while True:
            yield from it.run.rng.sample(failpoints.NAMES, len(failpoints.NAMES))
