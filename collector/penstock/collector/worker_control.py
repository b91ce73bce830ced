"""The admin socket of several collectors as one: each request goes to all workers.

Their answers come as one, with each worker's own under ``workers``. A configuration that one of
them refuses is taken back by those that run by it already, so that they go on alike.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.collector.control import Action, asking
from penstock.collector.limits import QUARANTINE_LINE_S, RELOAD_ANSWER_S, REPLAY_ANSWER_S
from penstock.service import (
    ExitCode,
    ServiceError,
    Status,
    UnavailableError,
    notify,
    notify_reloading,
)

Answer = dict[str, Any]
Checked = tuple[str, Callable[[], None]]

_TAP_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Waits:
    """How long workers are waited for, in seconds.

    Attributes:
        reload_s: For the answer to a reload.
        replay_s: For the answer to a replay.
        line_s: For the next line of a quarantine.
        tap_again_s: Before a worker whose look ended is looked for again.
    """

    reload_s: float = RELOAD_ANSWER_S
    replay_s: float = REPLAY_ANSWER_S
    line_s: float = QUARANTINE_LINE_S
    tap_again_s: float = _TAP_AGAIN_S


WAITS: Final = Waits()
"""Those of a collector that runs."""


def _refused(error: str, code: int) -> Answer:
    return {"result": "refused", "error": error, "exit_code": code, "workers": {}}


class WorkerControl:
    """The actions.

    Args:
        sockets: The workers' own, by their numbers.
        draining: Those of workers that only deliver what an earlier run left, and end then.
        check: Reads the configuration again; raises `ServiceError` when no worker can run by it.
            Returns the digest of what it read, and what is called when all run by that.
        status: The account of all, now.
        waits: For workers that do not answer.
    """

    def __init__(
        self,
        sockets: Mapping[int, Path],
        *,
        draining: Mapping[int, Path],
        check: Callable[[], Checked],
        status: Callable[[], Status],
        waits: Waits = WAITS,
    ) -> None:
        self._sockets = sockets
        self._draining = draining
        self._check = check
        self._status = status
        self._waits = waits
        self._reloading = asyncio.Lock()
        self._log = structlog.get_logger()

    @property
    def actions(self) -> dict[str, Action]:
        """By name."""
        return {
            "quarantine": self.quarantine,
            "reload": self.reload,
            "replay": self.replay,
            "status": self.status,
            "tap": self.tap,
        }

    async def reload(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Let all read the configuration again, or none."""
        report = await self.reload_all()
        if report["result"] == "refused":
            yield {
                "ok": False,
                "error": report["error"],
                "exit_code": report["exit_code"],
                "report": report,
            }
        else:
            yield {"ok": True, "report": report}

    async def settled(self) -> None:
        """Return when no reload is under way: a worker begun in one could miss it."""
        async with self._reloading:
            return

    async def reload_all(self) -> Answer:
        """The same as `reload`; returns what came of it."""
        async with self._reloading:
            notify_reloading()
            try:
                digest, accept = await asyncio.to_thread(self._check)
                report = await self._reload_workers(digest)
                if report["result"] != "refused":
                    accept()
            except ServiceError as error:
                report = _refused(str(error), int(error.exit_code))
            except Exception as error:  # noqa: BLE001 - all go on
                self._log.exception("a reload failed")
                report = _refused(repr(error), int(ExitCode.SOFTWARE))
            notify(READY=1)
            self._log.info("reloaded", **report)
            return report

    async def _reload_workers(self, digest: str) -> Answer:
        everyone = {**self._sockets, **self._draining}
        request = {"do": "reload", "digest": digest}
        answers = await self._ask_all(request, self._waits.reload_s, everyone)
        for index in self._draining:
            if answers[index].get("away"):  # it is done, or is begun with what all run by
                del answers[index]
        reports = {str(index): answer.get("report") for index, answer in answers.items()}
        errors = [f"worker {i}: {one['error']}" for i, one in answers.items() if not one["ok"]]
        results = {one["report"]["result"] for one in answers.values() if one["ok"]}
        if not errors:
            result = "applied" if "applied" in results else "unchanged"
            return {"result": result, "error": "", "workers": reports}
        changed = {
            index: one["report"]["generation"]
            for index, one in answers.items()
            if one["ok"] and one["report"]["result"] == "applied"
        }
        undone = await asyncio.gather(
            *(
                self._ask(everyone[index], {"do": "reload", "undo": number}, self._waits.reload_s)
                for index, number in changed.items()
            )
        )
        for index, answer in zip(changed, undone, strict=True):
            reports[str(index)] = answer.get("report")
            if not answer["ok"]:
                errors.append(f"worker {index} could not go back: {answer['error']}")
        codes = (one.get("exit_code") for one in answers.values() if not one["ok"])
        code = next((code for code in codes if code), int(ExitCode.UNAVAILABLE))
        return {**_refused("; ".join(errors), code), "workers": reports}

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

    async def quarantine(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Everything in quarantine, one worker after the other, each with its worker.

        Of those that receive; what others left is told by themselves, or lies in their directories.
        """
        for index, path in self._sockets.items():
            async with aclosing(asking(path, request)) as lines:
                while (line := await self._next_line(index, lines)) is not None:
                    if "kept" in line:
                        yield {"kept": {**line["kept"], "worker": index}}
                    elif not line.get("ok"):
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
                fix="end that process if it hangs, and ask again: it is started anew",
            ) from None

    async def status(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """What is in `/status`."""
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
                    self._log.info("a worker is looked for", worker=index, error=str(error))
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
            return {"ok": False, "error": str(error), "away": True}
        return {"ok": False, "error": "it ended the connection", "away": True}
