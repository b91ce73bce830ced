"""Sources that take HTTP requests, on real sockets, with a spool that can be looked into."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import requests

from penstock.collector.registry import SOURCES
from tests.support.receiving import listening
from tests.support.spool_writer import SpoolingIntake


class HttpSender:
    """Sends to one source, on a thread.

    Args:
        spool_writer: What the source has made durable.
    """

    def __init__(self, endpoint: str, spool_writer: SpoolingIntake) -> None:
        self.endpoint = endpoint
        self.url = f"http://{endpoint}"
        self.spool_writer = spool_writer

    async def ask(self, method: str, path: str, data: Any = b"", **more: Any) -> Any:
        return await asyncio.to_thread(
            requests.request, method, self.url + path, data=data, timeout=20, **more
        )

    async def post(self, path: str, data: Any, **more: Any) -> Any:
        return await self.ask("POST", path, data, **more)

    @property
    def records(self) -> list[dict[str, Any]]:
        """What is durable."""
        return [json.loads(line) for line in self.spool_writer.lines()]

    @property
    def bodies(self) -> list[str]:
        """The bodies of what is durable."""
        return [record["body"] for record in self.records]

    @property
    def counted(self) -> dict[str, int]:
        return dict(+self.spool_writer.account.notes)


@asynccontextmanager
async def serving(
    directory: Path, kind: str, *, spool: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[HttpSender]:
    """A source of a type, with the options of its section and those of its spool."""
    served = SOURCES.kind(kind)
    section = served.settings.model_validate({"type": kind, "listen": "127.0.0.1:0", **options})

    def make(spool_writer: SpoolingIntake) -> Any:
        return served.factory(section, {"site": "a"}, spool_writer=spool_writer)

    async with listening(directory, make, **(spool or {})) as (source, spool_writer):
        yield HttpSender(source.endpoint, spool_writer)
