"""The launcher's view of the running parts: their status and the log's progress."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.deploy.up.probe import get_json, is_serving
from penstock.deploy.up.supervisor import Check
from penstock.deploy.up.topology import STREAMS, Topology
from penstock.logd.errors import LogdError

if TYPE_CHECKING:
    from penstock.logd.client import OffsetRange

Offsets = dict[str, "OffsetRange"]


class Monitor:
    """Polls each part's `/status`, and reads the log's offsets at the moments that count.

    Attributes:
        names: The parts, in the order of the data path.
        logs_began: The sizes of logs of earlier runs, which say nothing about this one.
        statuses: The last answer of each part, kept when the part has gone.
        offsets_before: The log's, before the collector was started.
        offsets_after: The log's, after the collector has ended.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._urls = topology.admin_urls()
        self.names = topology.data_path()
        self.logs_began = {
            name: log.stat().st_size if (log := topology.layout.log(name)).exists() else 0
            for name in ("app", "collector")
        }
        self.statuses: dict[str, dict[str, Any]] = {}
        self.offsets_before: Offsets | None = None
        self.offsets_after: Offsets | None = None

    async def refresh(self) -> None:
        """Ask every part how it is."""
        names = [name for name in self._urls if name != "nats"]
        answers = await asyncio.gather(*(get_json(f"{self._urls[n]}/status") for n in names))
        for name, answer in zip(names, answers, strict=True):
            if answer is not None and "stages" in answer:
                self.statuses[name] = answer

    def logd_ready(self, part: str) -> Check:
        """Asks whether a logd serves."""
        return partial(self._is_ready, part)

    async def _is_ready(self, part: str) -> bool:
        """Return whether a logd serves and each stream has a leader.

        The first time, it stores the log's offsets for the demo's verdict.
        """
        if not await is_serving(self._urls[part]):
            return False
        if self._topology.app is None and self._topology.nodes == 1:
            return await self._has_streams(part)
        if self.offsets_before is None:
            self.offsets_before = await self._offsets()
        return self.offsets_before is not None

    async def _has_streams(self, part: str) -> bool:
        """Return whether a single node reports every stream; that needs no client of logd."""
        status = await get_json(f"{self._urls[part]}/status") or {}
        names = [stage["name"].split("/") for stage in status.get("stages", ())]
        return {name[1] for name in names if name[0] == "stream"} >= {*STREAMS}

    async def router_caught_up(self) -> bool:
        """Return whether the router has committed all that the log holds."""
        offsets = await self._offsets()
        if offsets is None:
            return False
        self.offsets_after = offsets
        await self.refresh()
        committed = committed_offsets(self.statuses.get("router", {}))
        return all(committed.get(name, 0) >= end for name, (_, end) in offsets.items())

    async def _offsets(self) -> Offsets | None:
        return await asyncio.to_thread(_read_offsets, self._topology.log_servers())

    async def leader(self, stream: str) -> str | None:
        """The part that leads a stream, None when none does or nobody says."""
        return await asyncio.to_thread(_read_leader, self._topology.log_servers(), stream)


def _read_offsets(server: str) -> Offsets | None:
    from penstock.logd.client import LogClient

    try:
        with LogClient(server, timeout_s=5.0) as log:
            return {name: log.offsets(name) for name in STREAMS}
    except LogdError:
        return None


def _read_leader(server: str, stream: str) -> str | None:
    from penstock.logd.client import LogClient

    try:
        with LogClient(server, timeout_s=5.0) as log:
            return log.stream(stream).partitions[0].leader
    except LogdError:
        return None


def committed_offsets(router: dict[str, Any]) -> dict[str, int]:
    """The next offset to read of each stream, from the router's status; the slowest sink counts."""
    found: dict[str, int] = router.get("info", {}).get("committed", {})
    return found
