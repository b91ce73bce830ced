"""What a running collector answers on its admin socket (`penstock.collector.agent.admin`)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from penstock.collector.agent.admin import Action
from penstock.collector.agent.reload import Report
from penstock.collector.agent.taps import Taps, read_tap
from penstock.collector.spool.quarantine import facts_of
from penstock.collector.spool.replay import Replayer, Wanted
from penstock.service import Status


class AdminActions:
    """The actions.

    Args:
        reload: Reads the configuration again.
        status: The collector's account of itself, now.
    """

    def __init__(
        self,
        reload: Callable[[], Awaitable[Report]],
        replayer: Replayer,
        taps: Taps,
        status: Callable[[], Status],
    ) -> None:
        self._reload = reload
        self._replayer = replayer
        self._taps = taps
        self._status = status

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
        """Read the configuration again; what was refused is an error."""
        report = await self._reload()
        if report.result == "refused":
            yield {
                "ok": False,
                "error": report.error,
                "exit_code": report.exit_code,
                "report": asdict(report),
            }
        else:
            yield {"ok": True, "report": asdict(report)}

    async def quarantine(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Everything in quarantine, oldest first, each as `kept`."""
        async for kept, replayed in self._replayer.kept():
            yield {"kept": facts_of(kept, replayed=replayed)}
        yield {"ok": True}

    async def replay(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Put records of the quarantine back: `source`, `reason`, `offsets` say which."""
        offsets = request.get("offsets", [])
        if not isinstance(offsets, list) or any(type(offset) is not int for offset in offsets):
            msg = "offsets must be a list of numbers"
            raise ValueError(msg)
        wanted = Wanted(
            str(request.get("source", "")), str(request.get("reason", "")), frozenset(offsets)
        )
        yield {"ok": True, **asdict(await self._replayer.replay(wanted))}

    async def status(self, _: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """What `/status` says."""
        yield {"ok": True, "status": asdict(self._status())}

    async def tap(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Records as they pass: `point`, `source`, `subject`, `every`; goes on until closed."""
        with self._taps.open(read_tap(request)) as tap:
            yield {"ok": True}
            while True:
                yield await tap.next()
