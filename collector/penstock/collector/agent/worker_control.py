"""The admin socket of a collector with several workers: each action goes to all of them.

One answer has all of theirs under ``workers``. A reload, also by SIGHUP, checks the configuration
as a whole and then restarts the workers one after the other:

    new configuration is wrong       no worker is restarted
    worker drains, starts, is ready  the next one follows
    worker does not become ready     it starts again with its earlier configuration; the workers
                                     after it are left as they are; the report names them
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.base.clock import SystemClock
from penstock.collector.agent.admin import Action, asking
from penstock.collector.agent.reload import Reloads, Report, Result
from penstock.collector.limits import QUARANTINE_LINE_S, REPLAY_ANSWER_S
from penstock.service import (
    ExitCode,
    ServiceError,
    Status,
    UnavailableError,
    notify,
    notify_reloading,
)

Answer = dict[str, Any]
Restart = Callable[[], Awaitable[None]]
"""Restarts a worker by another configuration, and returns when it is ready.

Raises:
    ServiceError: It did not become ready, and goes back to the configuration that it ran by.
"""

_NO_WORKERS: Final[Mapping[str, str]] = {}
_TAP_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds to wait for workers.

    Attributes:
        replay_s: Maximum seconds for the answer to a replay.
        line_s: Maximum seconds for the next line of a quarantine.
        tap_again_s: Seconds until the tap of a worker that ended is opened again.
    """

    replay_s: float = REPLAY_ANSWER_S
    line_s: float = QUARANTINE_LINE_S
    tap_again_s: float = _TAP_AGAIN_S


WAITS: Final = Waits()
"""The waits of a collector that runs."""


@dataclass(frozen=True, slots=True)
class Reloading:
    """A configuration that was read again and is right.

    Attributes:
        keys: Those that changed, `sources` among them.
        restarts: Restarts of the workers that do not run by it, in their order.
    """

    keys: tuple[str, ...]
    restarts: Mapping[int, Restart]


class WorkerControl:
    """Actions of the collector's admin socket, carried out by its workers.

    Args:
        sockets: The admin sockets of the workers that receive, by their numbers.
        draining: Those of workers that only deliver what an earlier run left, and end then.
        check: Reads the configuration again; raises `ServiceError` when no worker can run by it.
        status: The account of all, now.
        waits: Seconds to wait for workers that do not answer.
    """

    def __init__(
        self,
        sockets: Mapping[int, Path],
        *,
        draining: Mapping[int, Path],
        check: Callable[[], Reloading],
        status: Callable[[], Status],
        waits: Waits = WAITS,
    ) -> None:
        self._sockets = sockets
        self._draining = draining
        self._check = check
        self._status = status
        self._waits = waits
        self._reloading = asyncio.Lock()
        self._reload_waits = False
        self._clock = SystemClock()
        self._log = structlog.get_logger()
        self.reloads = Reloads()

    @property
    def actions(self) -> dict[str, Action]:
        """The actions of the admin socket, by name."""
        return {
            "drops": self.drops,
            "quarantine": self.quarantine,
            "reload": self.reload,
            "replay": self.replay,
            "status": self.status,
            "tap": self.tap,
        }

    async def reload(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Read the configuration again and restart the workers by it."""
        report = await self.reload_all()
        if report.error:
            error, code = report.error, report.exit_code
            yield {"ok": False, "error": error, "exit_code": code, "report": asdict(report)}
        else:
            yield {"ok": True, "report": asdict(report)}

    async def reload_once_more(self) -> None:
        """Reload, unless another reload that has not begun will read the same files."""
        if not self._reload_waits:
            self._reload_waits = True
            await self.reload_all()

    async def reload_all(self) -> Report:
        """Reload all workers, one after the other, and return the report."""
        async with self._reloading:
            self._reload_waits = False
            notify_reloading()
            try:
                reloading = await asyncio.to_thread(self._check)
                report = await self._restart_workers(reloading)
            except ServiceError as error:
                report = self._report("refused", str(error), int(error.exit_code))
            except Exception as error:  # noqa: BLE001 - all workers go on
                self._log.exception("reload_failed")
                report = self._report("refused", repr(error), int(ExitCode.SOFTWARE))
            self.reloads.note(report)
            notify(READY=1)
            self._log.info("config_reloaded", **asdict(report))
            return report

    async def _restart_workers(self, reloading: Reloading) -> Report:
        """Restart one after the other, until one does not come back."""
        if not reloading.restarts:
            return self._report("unchanged")
        workers = {str(index): "kept" for index in reloading.restarts}
        for index, restart in reloading.restarts.items():
            try:
                await restart()
            except ServiceError as error:
                workers[str(index)] = "refused"
                applied = any(one == "applied" for one in workers.values())
                text = f"{error}\n  workers: {json.dumps(workers)}" if applied else str(error)
                code = int(error.exit_code)
                return self._report("partial" if applied else "refused", text, code, workers)
            workers[str(index)] = "applied"
        return self._report("applied", workers=workers, keys=reloading.keys)

    def _report(
        self,
        result: Result,
        error: str = "",
        exit_code: int = 0,
        workers: Mapping[str, str] = _NO_WORKERS,
        keys: tuple[str, ...] = (),
    ) -> Report:
        return Report(
            result,
            self.reloads.generation + (result == "applied"),
            self._clock.unix_ns(),
            error=error,
            exit_code=exit_code,
            keys=keys,
            workers=dict(workers),
        )

    async def replay(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Put back what is in the quarantines of all that receive."""
        if request.get("offsets"):
            raise ValueError("offsets are those of one worker: name its own admin socket")
        answers = await self._ask_all(request, self._waits.replay_s, self._sockets)
        counts: Counter[str] = Counter()
        stopped = []
        for index, answer in answers.items():
            if not answer["ok"]:
                stopped.append(f"worker {index}: {answer['error']}")
                continue
            if answer["stopped"]:
                stopped.append(f"worker {index}: {answer['stopped']}")
            counts.update({name: answer[name] for name in ("replayed", "before", "unknown")})
        whole = {name: counts[name] for name in ("replayed", "before", "unknown")}
        each = {str(index): answer for index, answer in answers.items()}
        yield {"ok": True, **whole, "stopped": "; ".join(stopped), "workers": each}

    async def drops(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """What transforms dropped, one worker after the other, each with its worker."""
        async for line in self._records(request, "drop", "missed"):
            yield line

    async def quarantine(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """What is in quarantine, one worker after the other, each with its worker."""
        async for line in self._records(request, "kept"):
            yield line

    async def _records(
        self, request: Mapping[str, Any], *keys: str
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Lines of all workers that have one of the keys, with the worker's number.

        Of those that receive; others report what they left themselves, or it lies in their
        directories.
        """
        for index, path in self._sockets.items():
            async with aclosing(asking(path, request)) as lines:
                while (line := await self._next_line(index, lines)) is not None:
                    found = [key for key in keys if key in line]
                    for key in found:
                        yield {key: {**line[key], "worker": index}}
                    if not found and not line.get("ok"):
                        raise UnavailableError(
                            f"worker {index}: {line.get('error')}", fix="look at its log"
                        )
        yield {"ok": True, "workers": [*self._sockets]}

    async def _next_line(self, index: int, lines: AsyncGenerator[Answer, None]) -> Answer | None:
        try:
            async with asyncio.timeout(self._waits.line_s):
                return await anext(lines, None)
        except TimeoutError:
            raise UnavailableError(
                f"worker {index}: nothing for {self._waits.line_s:g} s",
                fix="end that process if it hangs, and ask again: it is started again",
            ) from None

    async def status(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        status = await asyncio.to_thread(self._status)
        yield {"ok": True, "status": asdict(status)}

    async def tap(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Records as they pass in any worker, each with its worker."""
        everyone = {**self._sockets, **self._draining}
        lines: asyncio.Queue[Answer | None] = asyncio.Queue(maxsize=len(everyone))

        async def read(index: int, path: Path) -> None:
            done = False
            while not done:
                try:
                    async with aclosing(asking(path, request)) as answers:
                        async for line in answers:
                            done = line.get("ok") is False
                            await lines.put({**line, "worker": index})
                except (ServiceError, ValueError) as error:
                    self._log.info("worker_unreachable", worker=index, error=str(error))
                done |= index in self._draining
                if not done:  # it ended, and is begun again
                    await asyncio.sleep(self._waits.tap_again_s)
            await lines.put(None)  # cancelled there is nobody any more who would make room for it

        readers = [asyncio.create_task(read(i, path)) for i, path in everyone.items()]
        try:
            left = len(readers)
            while left:
                line = await lines.get()
                if line is None:
                    left -= 1
                else:
                    yield line
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _ask_all(
        self, request: Mapping[str, Any], within_s: float, sockets: Mapping[int, Path]
    ) -> dict[int, Answer]:
        asked = (self._ask(path, request, within_s) for path in sockets.values())
        return dict(zip(sockets, await asyncio.gather(*asked), strict=True))

    async def _ask(self, path: Path, request: Mapping[str, Any], within_s: float) -> Answer:
        """One worker's only answer; that it does not answer is an error like another."""
        try:
            async with asyncio.timeout(within_s), aclosing(asking(path, request)) as answers:
                async for answer in answers:
                    return answer
        except TimeoutError:
            return {"ok": False, "error": f"no answer within {within_s:g} s; it may still do it"}
        except (ServiceError, ValueError) as error:
            return {"ok": False, "error": str(error)}
        return {"ok": False, "error": "it ended the connection"}
