"""Three nodes of each system: logd beside a nats-server, and nats-servers with JetStream R3.

All on one machine and one disk, the same binary and the same publishers as with single nodes. A
publisher is connected where the stream's leader is: to the nats-server that logd's nodes use, and
to the JetStream server that leads its stream, which saves it a hop.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from penstock.logd.client import PartitionInfo
from tests.bench.systems import (
    ALWAYS,
    COUNTED,
    DEFAULT,
    JetStream,
    NatsServer,
    System,
    logd_streams,
    started,
    token,
    unix_ns,
)
from tests.support.logd_cluster import LogdCluster
from tests.support.processes import free_port
from tests.support.waiting import wait_until

NODES: Final = 3

_ASK_S: Final = 2.0
"""Seconds for an answer of JetStream's API: without a leader there is none."""


@dataclass
class ReplicatedStream:
    """One stream of a cluster of logd nodes."""

    name: str
    url: str
    subject: str
    cluster: LogdCluster
    server: NatsServer
    stream: str
    leader: str = ""

    def info(self) -> PartitionInfo:
        """As its leader sees it."""
        if self.leader:
            found = self.cluster.partition(self.stream, node=self.leader)
            if found.leader == self.leader:
                return found
        self.leader = self.cluster.leader(self.stream)
        return self.cluster.partition(self.stream, node=self.leader)

    def stored(self) -> int:
        """Records below the high watermark."""
        found = self.info()
        return found.high_watermark + 1 - found.start_offset

    def settled(self) -> bool:
        """Whether no accepted record is uncommitted."""
        found = self.info()
        return found.high_watermark + 1 == found.end_offset

    def reported(self) -> dict[str, int]:
        """What its nodes counted as refused and lost, and their broken connections to NATS."""
        found = {COUNTED: 0, "NATS reconnects": 0}
        for node in self.cluster.nodes.values():
            found[COUNTED] += int(node.stage(self.stream)["errors"])
            found["NATS reconnects"] += int(node.daemon.status()["info"]["nats_reconnects"])
        return found

    def gaps(self) -> list[tuple[int, int]]:
        """The ingest gaps of all nodes."""
        found = []
        for node in self.cluster.nodes.values():
            gaps = node.daemon.status()["info"]["ingest_gaps"]
            found += [
                (unix_ns(gap["start"]), unix_ns(gap["end"]) if gap["end"] else 1 << 63)
                for gap in [*gaps["ended"], *gaps["lasting"]]
                if self.stream in gap["streams"]
            ]
        return found

    def pids(self) -> list[int]:
        """The nodes that run, and their nats-server."""
        running = (self.cluster.nodes[name].daemon for name in self.cluster.running())
        return [*(daemon.pid for daemon in running), self.server.pid]


@dataclass
class ReplicatedJetStream(JetStream):
    """One stream of a cluster of nats-servers."""

    servers: list[NatsServer] = field(default_factory=list)

    @override
    def reported(self) -> dict[str, int]:
        """Lines of the servers' logs that tell of drops."""
        logs = [server.log_path.read_text(errors="replace") for server in self.servers]
        found = sum(log.count("Dropping") + log.count("Slow Consumer") for log in logs)
        return {"warnings in the log": found}

    @override
    def pids(self) -> list[int]:
        """The nats-servers that run."""
        return [server.pid for server in self.servers if server.running]

    @override
    def create(self, **options: Any) -> None:
        """Create the stream once the cluster can, and be connected to its leader from then on."""
        wait_until(lambda: self._created(**options), within_s=60, what="JetStream cluster")
        wait_until(self._at_leader, within_s=60, what=f"a leader of {self.stream}")

    def _created(self, **options: Any) -> bool:
        try:
            super().create(num_replicas=NODES, timeout_s=_ASK_S, **options)
        except (ConnectionError, TimeoutError) as error:
            return "already in use" in str(error)
        return True

    def in_sync(self) -> bool:
        """Whether there is a leader, and every replica is current."""
        return bool(self._leader())

    def _at_leader(self) -> bool:
        leader = self._leader()
        if not leader:
            return False
        self.server = self.servers[int(leader.removeprefix("n"))]
        self.url = self.server.url
        return True

    def _leader(self) -> str:
        """Who leads a stream all of which is in sync; empty: nobody does."""
        try:
            info = self.ask(f"STREAM.INFO.{self.stream}", timeout_s=_ASK_S)["cluster"]
        except (ConnectionError, TimeoutError):
            return ""
        current = [replica for replica in info.get("replicas", ()) if replica["current"]]
        return str(info.get("leader", "")) if len(current) == NODES - 1 else ""


def logd_cluster(
    stack: ExitStack, directory: Path, streams: list[dict[str, Any]], **options: Any
) -> tuple[LogdCluster, NatsServer]:
    """A cluster with streams of three replicas each, which are in sync; ended with the stack."""
    server = started(stack, NatsServer(directory / "nats"))
    cluster = stack.enter_context(LogdCluster(directory, server.url, size=NODES, **options))
    for stream in streams:
        cluster.create(**stream)
    for stream in streams:
        cluster.wait_in_sync(stream["name"])
    return cluster, server


def nats_cluster(stack: ExitStack, directory: Path, *, sync: str) -> list[NatsServer]:
    """Three nats-servers with JetStream that know each other; ended with the stack."""
    ports = [free_port() for _ in range(NODES)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    return [
        started(
            stack,
            NatsServer(
                directory / f"n{number}",
                jetstream=sync,
                settings=f"server_name: n{number}\n"
                f'cluster {{ name: bench, listen: "127.0.0.1:{port}", routes: [{routes}] }}',
            ),
        )
        for number, port in enumerate(ports)
    ]


@contextmanager
def running_clusters(
    directory: Path, names: Sequence[str], **options: Any
) -> Iterator[list[System]]:
    """The named systems with three replicas, in that order, stopped and deleted with the block.

    Args:
        directory: For their data; must not exist.
        names: Of `systems`.
        options: Of the JetStream streams.
    """
    found: dict[str, System] = {}
    directory.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        ours = logd_streams(names)
        if ours:
            cluster, server = logd_cluster(stack, directory / "logd", ours)
            for name in (name for name in names if name.startswith("logd")):
                at, subject = token(name), f"{token(name)}.bench"
                found[name] = ReplicatedStream(name, server.url, subject, cluster, server, at)
        for name in (name for name in names if name in (ALWAYS, DEFAULT)):
            sync = "always" if name == ALWAYS else "2m"
            servers = nats_cluster(stack, directory / token(name), sync=sync)
            first, subject = servers[0], f"{token(name)}.bench"
            peer = ReplicatedJetStream(name, first.url, subject, first, servers=servers)
            peer.create(**options)
            found[name] = peer
        yield [found[name] for name in names]
