"""Polls the status of every part, each in its own task, so a slow part delays no other.

A part of `each_address` is one part for each address of its host name. The name is resolved every
`RESOLVE_S` seconds: new addresses are polled, and those that are gone are no longer shown.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from socket import SOCK_STREAM, getaddrinfo
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.base.clock import Clock
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.http_client import Answer, ask_json, port_of
from penstock.deploy.console.rates import Rates
from penstock.deploy.console.snapshot import PartSnapshot, note_rates

NATS: Final = "nats"
"""The part that is a nats-server: it describes itself at `/varz`."""

_LOAD: Final = 10
"""A part whose answer took so long is asked again after so many times that, but not later than
`PAUSE_S_MAX` (or the configured interval): what ends must show soon."""

PAUSE_S_MAX: Final = 1.5

UNWATCHED_S: Final = 30.0
"""Seconds after a page last asked; from then on each pause is `UNWATCHED_FACTOR` times as long."""
UNWATCHED_FACTOR: Final = 5

RESOLVE_S: Final = 5.0
"""Pause between two lookups of a name's addresses."""

ADDRESSES_MAX: Final = 256
"""Addresses of one name that are polled; further ones are not."""


@dataclass(frozen=True, slots=True)
class NameResolver:
    """The lookup of names' addresses.

    Attributes:
        look_up: `socket.getaddrinfo`, or a function like it.
        interval_s: Seconds between two lookups.
    """

    look_up: Callable[..., list[Any]] = getaddrinfo
    interval_s: float = RESOLVE_S


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The address of a part.

    Attributes:
        configured: Its name in the configuration.
        address: One of the host's addresses; None: any.
    """

    configured: str
    url: str
    address: str | None = None


class Poller:
    """The parts' last answers.

    Args:
        config: Addresses of the parts, and the interval.
        rates: Takes their counters.
        clock: Clock of durations.
        changed: Called when there is news.
        names: Resolver of names.

    Attributes:
        failures: Questions that were not answered, by part.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        rates: Rates,
        clock: Clock,
        changed: Callable[[], None],
        names: NameResolver | None = None,
    ) -> None:
        self._names_of = names or NameResolver()
        self._config = config
        self._rates = rates
        self._clock = clock
        self._changed = changed
        self._statuses: dict[str, Mapping[str, Any]] = {}
        self._answered_ns: dict[str, int] = {}
        self._asked_ns: dict[str, int] = {}
        self._addresses: dict[str, dict[str, asyncio.Task[None]]] = {}
        self._watched_ns = clock.monotonic_ns()
        self._watched = asyncio.Event()
        self._problems = dict.fromkeys(config.parts, "not asked yet")
        self.failures = dict.fromkeys(config.parts, 0)

    def watch(self) -> None:
        """A page asks: poll as configured for the next `UNWATCHED_S` seconds."""
        self._watched_ns = self._clock.monotonic_ns()
        self._watched.set()

    async def pause(self, pause_s: float) -> None:
        """Wait between two questions; longer while no page asks, until one does."""
        unwatched_ns = self._clock.monotonic_ns() - self._watched_ns
        if unwatched_ns < UNWATCHED_S * 1e9:
            await asyncio.sleep(pause_s)
            return
        self._watched.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s * UNWATCHED_FACTOR):
                await self._watched.wait()

    async def run(self) -> None:
        """Ask for ever."""
        async with asyncio.TaskGroup() as tasks:
            for name, url in self._config.parts.items():
                place = _Endpoint(name, url.rstrip("/"))
                if name in self._config.each_address:
                    tasks.create_task(self._follow_each(place, tasks))
                else:
                    tasks.create_task(self._follow(name, place))
            await asyncio.Event().wait()  # also without parts

    def seen(self) -> list[PartSnapshot]:
        """Return what is known of each part, in the order of the configuration."""
        now_ns = self._clock.monotonic_ns()
        return [
            PartSnapshot(
                name,
                self._statuses.get(name),
                self._problems[name],
                None if name not in self._answered_ns else self._age_ms(name, now_ns),
                self._asked_ns.get(name, 0),
            )
            for name in self._names()
        ]

    def _names(self) -> list[str]:
        """The configured names; a name with several addresses becomes one name for each."""
        return [one for name in self._config.parts for one in self._addresses.get(name) or [name]]

    def component_of(self, name: str) -> str:
        """Return the component that a part last said it is; empty: it has never answered."""
        return str(self._statuses.get(name, {}).get("component", ""))

    def _age_ms(self, name: str, now_ns: int) -> int:
        return (now_ns - self._answered_ns[name]) // 1_000_000

    async def _follow_each(self, place: _Endpoint, tasks: asyncio.TaskGroup) -> None:
        name = place.configured
        known = self._addresses.setdefault(name, {})
        while True:
            try:
                found = await addresses_of(name, place.url, self._names_of, self._config.timeout_s)
            except (OSError, ValueError) as error:  # those that are known are asked as before
                self._problems[name] = f"{urlsplit(place.url).hostname}: {error}"
            else:
                for part in known.keys() - found.keys():
                    known.pop(part).cancel()
                    self._forget(part)
                for part in found.keys() - known.keys():
                    self._problems[part], self.failures[part] = "not asked yet", 0
                    one = _Endpoint(name, place.url, found[part])
                    known[part] = tasks.create_task(self._follow(part, one))
            self._changed()
            await asyncio.sleep(self._names_of.interval_s)

    def _forget(self, part: str) -> None:
        for kept in (
            self._statuses,
            self._answered_ns,
            self._asked_ns,
            self._problems,
            self.failures,
        ):
            kept.pop(part, None)

    async def _follow(self, name: str, place: _Endpoint) -> None:
        while True:
            begun_ns = self._clock.monotonic_ns()
            answer = await self._ask(place)
            now_ns = self._clock.monotonic_ns()
            self._problems[name] = answer.problem
            if answer.document is None:
                self.failures[name] += 1
            else:
                self._statuses[name] = answer.document
                self._answered_ns[name] = now_ns
                self._asked_ns[name] = begun_ns
                note_rates(PartSnapshot(name, answer.document), self._rates, now_ns)
            self._changed()
            took_s = (now_ns - begun_ns) / 1e9 if answer.document else 0.0
            pause_s = min(_LOAD * took_s, PAUSE_S_MAX)
            await self.pause(max(self._config.poll_interval_s, pause_s))

    async def _ask(self, place: _Endpoint) -> Answer:
        config, name = self._config, place.configured
        path = "/varz" if name == NATS else "/status"
        answer = await ask_json(
            f"{place.url}{path}",
            config.access_to(name),
            timeout_s=config.timeout_s,
            address=place.address,
        )
        if answer.document is None:
            return answer
        if name == NATS:
            return Answer(nats_status(answer.document))
        if not isinstance(answer.document.get("stages"), list):
            return Answer(None, "what answers there is no part of Penstock")
        return answer


async def addresses_of(
    name: str, url: str, names: NameResolver, timeout_s: float
) -> dict[str, str]:
    """The parts that a part of `each_address` stands for: the address of each, by its name.

    Raises:
        OSError: The name of the host cannot be looked up in time.
        ValueError: It is none.
    """
    async with asyncio.timeout(timeout_s):  # a TimeoutError is an OSError
        found = await asyncio.to_thread(
            names.look_up, urlsplit(url).hostname, port_of(url), type=SOCK_STREAM
        )
    preferred = found[0][0]  # a host that has both kinds would be counted twice
    addresses = sorted({str(one[4][0]) for one in found if one[0] == preferred})
    return {f"{name}-{one}": one for one in addresses[:ADDRESSES_MAX]}


def nats_status(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return nats-server's answer at `/varz` in the form of a part's status."""
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
