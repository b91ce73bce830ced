"""The collectors and jobs of a pipeline, as a trace asks them."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.http_client import Answer, Posted, ask_json, one_line_of
from penstock.deploy.console.poller import NATS, NameResolver, addresses_of

TRACE_PATH: Final = "/trace"
"""Path at a job's admin endpoint; `penstock.router.trace.service` describes it."""

RECORDS_PATH: Final = "/records"
"""Path at a collector's admin endpoint; `penstock.collector.agent.records_endpoint` describes it.
"""

TIMEOUT_S: Final = 30.0
"""Maximum seconds of a job's answer: Spark evaluates conditions for it."""

_NOT_ASKED: Final = re.compile(rf"({NATS}|logd|console)\b.*")
"""Names of parts of which a trace wants nothing at their admin endpoint."""


MAX_CONCURRENT: Final = 16
"""Parts that one trace asks at a time."""

T = TypeVar("T")


async def gather_bounded(asked: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers to questions, of which `MAX_CONCURRENT` are under way at a time."""
    room = asyncio.Semaphore(MAX_CONCURRENT)

    async def ask(one: Coroutine[Any, Any, T]) -> T:
        async with room:
            return await one

    return await asyncio.gather(*map(ask, asked))


class PartUnavailableError(Exception):
    """A part does not answer; the text says why."""


class JobUnavailableError(PartUnavailableError):
    """It is a job."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that answered.

    Attributes:
        jobs: Status of each router, by the part's name.
        collectors: Status of each collector likewise.
        silent: Parts that did not answer, each with the reason.
        stopped: Jobs that do not answer and whose files are read instead, each with its state.
            They are among `jobs`, with an empty status.
    """

    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    collectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)


Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Answers a question in place of a job's admin endpoint; raises `JobUnavailableError`."""


class PartsClient:
    """Asks the parts of a console's configuration.

    Args:
        config: Addresses and credentials.
        names: Resolver of the names that stand for several parts.
    """

    def __init__(self, config: ConsoleConfig, names: NameResolver | None = None) -> None:
        self._config = config
        self._names = names or NameResolver()
        self._addresses: dict[str, tuple[str, str]] = {}
        self._stopped: dict[str, Ask] = {}

    def answer_for(self, job: str, ask: Ask) -> None:
        """Have a function answer the questions to a job that does not answer."""
        self._stopped[job] = ask

    async def statuses(self) -> Parts:
        """Ask each part for its status; a part of `each_address` is one for each address."""
        silent: dict[str, str] = {}
        names = list[str]()
        for name in self._config.parts:
            if name in self._config.each_address:
                names += await self._find_each(name, silent)
            elif not _NOT_ASKED.fullmatch(name):
                names.append(name)
        answers = await gather_bounded([self._ask(name, "/status") for name in names])
        jobs, collectors = {}, {}
        for name, answer in zip(names, answers, strict=True):
            status = answer.document or {}
            if status.get("component") == "router":
                jobs[name] = status
            elif status.get("component") == "collector":
                collectors[name] = status
            elif answer.document is None:
                silent[name] = answer.problem
        return Parts(jobs, collectors, silent)

    async def _find_each(self, name: str, silent: dict[str, str]) -> list[str]:
        """The names of the parts at each address of one that stands for several."""
        config = self._config
        try:
            found = await addresses_of(name, config.parts[name], self._names, config.timeout_s)
        except (OSError, ValueError) as error:
            silent[name] = str(error) or type(error).__name__
            return []
        self._addresses |= {part: (name, address) for part, address in found.items()}
        return [*found]

    async def ask_job(self, name: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask a job about records.

        Raises:
            JobUnavailableError: It does not answer, or refuses.
        """
        if name in self._stopped:
            return await asyncio.to_thread(self._stopped[name], document)
        try:
            return await self._post(name, TRACE_PATH, document)
        except PartUnavailableError as error:
            raise JobUnavailableError(str(error)) from None

    async def ask_collector(self, name: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask a collector for records that it dropped or refused.

        Raises:
            PartUnavailableError: It does not answer, or refuses.
        """
        return await self._post(name, RECORDS_PATH, document)

    async def _post(self, name: str, path: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
        configured, _ = self._addresses.get(name, (name, None))
        token_file = self._config.access_to(configured).token_file
        is_secure = self._config.parts[configured].startswith("https://")
        try:
            token = one_line_of(token_file) if is_secure and token_file is not None else ""
        except (OSError, ValueError) as error:
            raise PartUnavailableError(str(error)) from None
        answer = await self._ask(name, path, Posted(dict(document), token))
        if answer.document is None:
            raise PartUnavailableError(answer.problem)
        return answer.document

    async def _ask(self, name: str, path: str, posted: Posted | None = None) -> Answer:
        configured, address = self._addresses.get(name, (name, None))
        return await ask_json(
            f"{self._config.parts[configured].rstrip('/')}{path}",
            self._config.access_to(configured),
            timeout_s=self._config.timeout_s if posted is None else TIMEOUT_S,
            posted=posted,
            address=address,
        )


def producers_of(collectors: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Name the collector and the source of each producer of batches, by its id in hexadecimal.

    A collector knows the producers of what it has read since its routes last changed.
    """
    found = {}
    for status in collectors.values():
        info = status.get("info", {})
        infos: Sequence[Mapping[str, Any]] = [info, *info.get("workers", {}).values()]
        for one in infos:
            for name, queue in one.get("queues", {}).items():
                source = name.split(" ")[1]
                found[str(queue.get("producer"))] = (str(status.get("name")), source)
    return found
