"""A member of a consumer group in a process of its own, which a test stops and kills.

    python -m tests.support.group_member SERVER GROUP STREAM SESSION_S OUT [async]

It writes a line of JSON to OUT for each record it is given, and ends when it is told that it is
fenced. On SIGTERM it leaves.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.logd.client import AsyncLogClient, GroupOptions, GroupRecord, LogClient
from penstock.logd.errors import RefusedError


class MemberProcess:
    """One member, started."""

    def __init__(
        self, directory: Path, server: str, name: str, *, session_s: float = 1.5, how: str = "block"
    ) -> None:
        self.name = name
        self.out = directory / f"{name}.out"
        arguments = [server, "g", "s", str(session_s), str(self.out), how]
        with (directory / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.group_member", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)

    def lines(self) -> list[dict[str, Any]]:
        """What it wrote so far; of a record: member, partition, offset, epoch, value."""
        if not self.out.exists():
            return []
        whole = self.out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def records(self) -> list[dict[str, Any]]:
        """Those of its lines that are of records."""
        return [line for line in self.lines() if "offset" in line]


def main(arguments: list[str]) -> None:
    server, group, stream, session_s, out, how = arguments
    options = GroupOptions(session_s=float(session_s))
    signal.signal(signal.SIGTERM, _interrupt)
    with Path(out).open("a") as file:

        def write(**line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        try:
            if how == "async":
                asyncio.run(_consume(server, group, stream, options, write))
            else:
                with LogClient(server) as log, log.join_group(group, stream, options) as consumer:
                    for item in consumer:
                        _write(write, consumer.member, item)
        except RefusedError as error:
            write(refused=error.code)
        except KeyboardInterrupt:
            write(left=True)


async def _consume(
    server: str, group: str, stream: str, options: GroupOptions, write: Callable[..., None]
) -> None:
    async with (
        AsyncLogClient(server) as log,
        log.join_group(group, stream, options) as consumer,
    ):
        async for item in consumer:
            _write(write, consumer.member, item)


def _write(write: Callable[..., None], member: str, item: GroupRecord) -> None:
    value = (item.record.value or b"").decode()
    number = item.partition.partition
    write(member=member, partition=number, offset=item.offset, epoch=item.epoch, value=value)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main(sys.argv[1:])
