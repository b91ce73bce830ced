"""The state of logd's streams and nodes, polled."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from penstock.base.clock import Clock
from penstock.deploy.console.rates import Rates
from penstock.logd.client import ClusterInfo, PartitionInfo, StreamInfo
from penstock.logd.errors import LogdError

_LOAD: Final = 10
"""A question that took so long is asked again after so many times that."""


class Log(Protocol):
    """The part of `AsyncLogClient` that lists the streams."""

    async def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        """Return all streams."""
        ...

    async def cluster(self) -> ClusterInfo:
        """The nodes."""
        ...


@dataclass(slots=True)
class Streams:
    """The last answer, kept while there is no other.

    Attributes:
        rows: One for each partition, as the page has it.
        nodes: One for each node of the cluster.
        cluster: Its name; None: a single node, or nobody has said.
        controller: The node that decides.
        problem: Why the last question was not answered; empty: it was.
        answered_ns: Monotonic time of the last answer; None: there was none.
    """

    rates: Rates
    rows: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    cluster: str | None = None
    controller: str | None = None
    problem: str = "not asked yet"
    answered_ns: int | None = None

    async def follow(
        self,
        log: Log,
        clock: Clock,
        interval_s: float,
        changed: Callable[[], None],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Ask for ever.

        Args:
            log: Answers.
            clock: Clock of durations.
            interval_s: Between two questions.
            changed: Called when there is news.
            pause: Waits for so many seconds, or longer while nobody looks.
        """
        while True:
            begun_ns = clock.monotonic_ns()
            try:
                streams, cluster = await asyncio.gather(log.streams(internal=True), log.cluster())
            except (LogdError, OSError) as error:  # of files of `access`, too
                self.problem = str(error)
            else:
                self.take(streams, cluster, clock.monotonic_ns())
            changed()
            took_s = (clock.monotonic_ns() - begun_ns) / 1e9
            await pause(max(interval_s, _LOAD * took_s if not self.problem else 0))

    def take(self, streams: list[StreamInfo], cluster: ClusterInfo, at_ns: int) -> None:
        """Take an answer."""
        for stream in streams:
            for part in stream.partitions:
                if part.is_known:
                    self.rates.take(_key(stream, part), part.high_watermark + 1, at_ns)
        self.rows = [row for stream in streams for row in self._rows(stream, at_ns)]
        leads = [row["leader"] for row in self.rows]
        self.nodes = [
            {
                "name": node.node,
                "live": node.live,
                "state": node.state,
                "rack": node.rack,
                "leads": leads.count(node.node),
            }
            for node in cluster.nodes
            if node.is_member
        ]
        self.cluster, self.controller = cluster.cluster, cluster.controller
        self.problem, self.answered_ns = "", at_ns

    def _rows(self, stream: StreamInfo, now_ns: int) -> list[dict[str, Any]]:
        common = {"stream": stream.name, "keep": _keep(stream.options)}
        if not stream.partitions:
            return [
                common
                | {"label": stream.name, "subject": stream.subject, "state": "failed"}
                | dict.fromkeys(("leader", "records", "end", "size", "rate", "start"))
                | {"problem": stream.problem, "partition": 0, "isr": [], "replicas": []}
            ]
        several = len(stream.partitions) > 1
        return [
            common
            | {
                "label": f"{stream.name}/{part.partition}" if several else stream.name,
                "partition": part.partition,
                "subject": f"{stream.subject}.{part.partition}"
                if part.partition
                else stream.subject,
                "state": stream.state_of(part),
                "problem": stream.problem or _refusal(stream, part),
                "leader": part.leader,
                "isr": list(part.isr),
                "replicas": list(part.replicas),
                "start": part.start_offset if part.is_known else None,
                "end": part.high_watermark + 1 if part.is_known else None,
                "records": part.high_watermark + 1 - part.start_offset if part.is_known else None,
                "size": part.size_bytes if part.is_known else None,
                "rate": self.rates.per_second(_key(stream, part), now_ns),
            }
            for part in stream.partitions
        ]


def _key(stream: StreamInfo, part: PartitionInfo) -> tuple[str, str, int]:
    return (stream.name, stream.incarnation, part.partition)


def _refusal(stream: StreamInfo, part: PartitionInfo) -> str:
    refusal = stream.refusal_of(part)
    return f"{part.leader} refuses publishers: {refusal}" if refusal else ""


def _keep(options: dict[str, Any]) -> dict[str, Any]:
    """Return the retention of a stream: limits by name, `compact`."""
    limits = options.get("retention")
    found = {name: options.get(name) for name in ("age_s", "bytes", "messages", "compact")}
    if isinstance(limits, dict):
        found |= limits
    return {name: value for name, value in found.items() if value}
