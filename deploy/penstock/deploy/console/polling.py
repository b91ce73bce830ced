"""Asks every part how it is, each in a task of its own: one that is slow delays nobody."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.deploy.console.asking import Answer, ask_json
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.core.picture import Seen, note_rates
from penstock.deploy.core.rates import Rates
from penstock.service.clock import Clock

NATS: Final = "nats"
"""The part that is a nats-server: it describes itself at `/varz`."""

_LOAD: Final = 10
"""A part whose answer took so long is asked again after so many times that, but not later than
`PAUSE_S_MAX` (or the configured interval): what ends must show soon."""

PAUSE_S_MAX: Final = 1.5


class Polling:
    """The parts' last answers.

    Args:
        config: Where they are, and how often to ask.
        rates: Takes their counters.
        clock: For durations.
        changed: Called when there is news.

    Attributes:
        failures: Questions that were not answered, by part.
    """

    def __init__(
        self, config: ConsoleConfig, rates: Rates, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self._config = config
        self._rates = rates
        self._clock = clock
        self._changed = changed
        self._statuses: dict[str, Mapping[str, Any]] = {}
        self._answered_ns: dict[str, int] = {}
        self._problems = dict.fromkeys(config.parts, "not asked yet")
        self.failures = dict.fromkeys(config.parts, 0)

    async def run(self) -> None:
        """Ask for ever."""
        async with asyncio.TaskGroup() as tasks:
            for name, url in self._config.parts.items():
                tasks.create_task(self._follow(name, url.rstrip("/")))
            await asyncio.Event().wait()  # also without parts

    def seen(self) -> list[Seen]:
        """What is known of each part, in the order in which they are configured."""
        now_ns = self._clock.monotonic_ns()
        return [
            Seen(
                name,
                self._statuses.get(name),
                self._problems[name],
                None if name not in self._answered_ns else self._age_ms(name, now_ns),
            )
            for name in self._config.parts
        ]

    def component_of(self, name: str) -> str:
        """What the part of that name last said it is; empty: it has never answered."""
        return str(self._statuses.get(name, {}).get("component", ""))

    def _age_ms(self, name: str, now_ns: int) -> int:
        return (now_ns - self._answered_ns[name]) // 1_000_000

    async def _follow(self, name: str, url: str) -> None:
        while True:
            begun_ns = self._clock.monotonic_ns()
            answer = await self._ask(name, url)
            now_ns = self._clock.monotonic_ns()
            self._problems[name] = answer.problem
            if answer.document is None:
                self.failures[name] += 1
            else:
                self._statuses[name] = answer.document
                self._answered_ns[name] = now_ns
                note_rates(Seen(name, answer.document), self._rates, now_ns)
            self._changed()
            took_s = (now_ns - begun_ns) / 1e9 if answer.document else 0.0
            pause_s = min(_LOAD * took_s, PAUSE_S_MAX)
            await asyncio.sleep(max(self._config.poll_interval_s, pause_s))

    async def _ask(self, name: str, url: str) -> Answer:
        config = self._config
        path = "/varz" if name == NATS else "/status"
        access = config.access_to(name)
        answer = await ask_json(f"{url}{path}", access, timeout_s=config.timeout_s)
        if answer.document is None:
            return answer
        if name == NATS:
            return Answer(nats_status(answer.document))
        if not isinstance(answer.document.get("stages"), list):
            return Answer(None, "what answers there is no part of Penstock")
        return answer


def nats_status(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What nats-server says at `/varz`, as a part says it."""
    stage = {
        "name": "messages",
        "received": facts.get("in_msgs", 0),
        "sent": facts.get("out_msgs", 0),
        "lag": 0,
        "errors": facts.get("slow_consumers", 0),
    }
    return {
        "component": "nats",
        "name": facts.get("server_name", "nats"),
        "version": facts.get("version", ""),
        "health": "ready",
        "reasons": [],
        "stages": [stage],
    }
