"""A node of the metadata group as a process of its own, told what to do line by line.

    python -m tests.support.metadata_node NODE DIRECTORY BOOT MEMBERS-JSON

Reads `create NAME` and `list` from standard input; writes `ready`, `created NAME`, `failed NAME
REASON` and `streams NAME,NAME,...`, the latter after a linearizable read.
"""

import asyncio
import json
import random
import sys
from pathlib import Path

import structlog

from penstock.base.clock import BootClock
from penstock.logd.cluster.node import ClusterNode, ClusterSettings
from penstock.logd.controller.liveness import PartitionReport
from penstock.logd.errors import LogdError
from penstock.logd.metadata.commands import Command, CreateStream, Placement
from penstock.logd.metadata.records import Addresses, ReplicationOptions
from penstock.logd.metadata.state import Result
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from penstock.logd.replication.events import NodeId
from penstock.logd.replication.session import PartitionId


class NoReplicas:
    """It holds nothing of the streams."""

    def find(self, key: PartitionId) -> None:
        return None

    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        return ()

    def unreachable(self) -> bool:
        return False

    def on_lease(self, *, held: bool) -> None:
        pass

    def on_applied(self, command: Command, result: Result) -> None:
        pass

    def on_restored(self) -> None:
        pass


async def main(name: str, directory: str, boot: str, initial_members: str) -> None:
    """Run until standard input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    addresses = json.loads(initial_members)
    settings = ClusterSettings(
        cluster="test", node=NodeId(name), directory=Path(directory), initial_members=addresses,
        listen=addresses[name], advertised=Addresses(peer=""), boot=boot,
    )  # fmt: skip
    node = ClusterNode(settings, NoReplicas(), random.Random(), BootClock())
    node.listen()
    running = asyncio.create_task(node.run())
    say("ready")
    while line := (await asyncio.to_thread(sys.stdin.readline)).split():
        match line:
            case ["create", stream]:
                say(await create(node, stream, tuple(addresses)))
            case ["list"]:
                state = await node.group.read(timeout_s=60)
                say("streams " + ",".join(sorted(state.streams)))
            case _:
                raise ValueError(line)
    running.cancel()
    await asyncio.wait([running])


async def create(node: ClusterNode, stream: str, nodes: tuple[str, ...]) -> str:
    command = CreateStream(
        config=StreamConfig(name=stream, subject=f"{stream}.>"),
        options=ReplicationOptions(replication_factor=3),
        placements=(Placement(replicas=nodes, isr=nodes),),
        nonce="00",
    )
    try:
        result = await node.group.change(command, timeout_s=20)
    except LogdError as error:
        return f"failed {stream} {error}"
    return f"created {stream}" if isinstance(result, Done) else f"failed {stream} {result}"


def say(line: str) -> None:
    """Write a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
