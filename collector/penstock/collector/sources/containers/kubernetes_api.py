"""The Kubernetes API server: lists of objects, and watches of their changes.

A watch begins with a list, whose `metadata.resourceVersion` says where the changes after it begin,
and goes on with ``GET …?watch=1&resourceVersion=…``, an answer without an end that has one JSON
object a line: ``{"type": "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR", "object": {…}}``.
A server forgets old changes: it then answers 410 Gone, by its status or as an ERROR, and the watch
begins with a list again. See "Kubernetes API Concepts", "Efficient detection of changes". The
server ends each watch after `timeoutSeconds`; the next one goes on where it was.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from urllib.parse import urlencode

import orjson

from penstock.base.backoff import Backoff
from penstock.base.http.client import Request, client_tls, open_stream
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import (
    KUBERNETES_LIST_BYTES_MAX,
    KUBERNETES_OBJECT_BYTES_MAX,
    RESTART_MAX_S,
    RESTART_MIN_S,
)
from penstock.collector.sources.containers.settings import ApiSection
from penstock.collector.sources.network.http import get
from penstock.service import ConfigError

_REFUSED: Final = (401, 403)
_GONE: Final = 410
_NOT_REACHED: Final = 504
"""Answered to a watch from a resource version that the server has not, as after it was restored."""
_PAGE_ITEMS: Final = 500
"""Objects of one answer to a list; clients of Kubernetes' own ask for as many."""
_WATCH_S: Final = (240, 300)
"""Seconds after which the server ends a watch, drawn between these, so that all nodes' do not end
together; client-go draws between 300 and 600."""
_AGAIN_S: Final = 1.0
"""Between two watches, however soon the server ends them."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """What is asked for.

    Attributes:
        path: Path at the server.
        right: What the service account's role must allow, for the message where it does not.
        query: Which of its objects.
    """

    path: str
    right: str
    query: Mapping[str, str] = field(default_factory=dict)


class GoneError(Exception):
    """The server has forgotten the changes after a resource version: a list must come first."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Every object there is.

    Attributes:
        version: The resource version of the list: changes after it come as `Changes`.
    """

    items: list[Object]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One object that came, changed or went."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    item: Object


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes that came together, in their order.

    Attributes:
        version: The resource version after them.
    """

    items: list[Change]
    version: str


Take = Callable[[Listed | Changes], Awaitable[None]]


class ChangeReader:
    """Cuts the answer to a watch into changes.

    Attributes:
        version: The resource version of the last change or bookmark.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._rest = b""

    def feed(self, data: bytes) -> list[Change]:
        """Return the changes that are whole now.

        Raises:
            GoneError: The server says so.
            RemoteProtocolError: It reports another error, or something that is no change.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > KUBERNETES_OBJECT_BYTES_MAX:
            raise RemoteProtocolError(f"a change has more than {KUBERNETES_OBJECT_BYTES_MAX} bytes")
        found = [self._change(line) for line in lines if line.strip()]
        return [one for one in found if one is not None]

    def _change(self, line: bytes) -> Change | None:
        try:
            document = orjson.loads(line)
            kind, item = document["type"], document["object"]
            if kind == "ERROR":
                if item.get("code") == _GONE:
                    raise GoneError
                raise RemoteProtocolError(f"the watch failed: {str(item.get('message'))[:200]}")
            self.version = str(item["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RemoteProtocolError(
                f"the answer has something that is no change: {error}"
            ) from None
        return Change(kind, item) if kind in ("ADDED", "MODIFIED", "DELETED") else None


class KubernetesApi:
    """Asks one API server with a service account's token.

    Args:
        section: Address and credentials.
        where: Place of the section in the configuration, for messages.

    Raises:
        ConfigError: The file of authorities cannot be used.
    """

    def __init__(self, section: ApiSection, where: str) -> None:
        self._section = section
        self._context = _context(section, where)

    async def get(self, resource: Resource) -> Any:
        """Return the JSON document at a path.

        Raises:
            OSError: The server cannot be reached.
            GoneError: A continued list has expired.
            RemoteProtocolError: It refuses, or what it answers is not JSON.
        """
        reply = await get(
            self._section.server.rstrip("/") + _target(resource),
            await self._headers(),
            timeout_s=self._section.timeout_s,
            body_bytes_max=KUBERNETES_LIST_BYTES_MAX,
            context=self._context,
        )
        _check(reply.status, resource)
        try:
            return orjson.loads(reply.body)
        except orjson.JSONDecodeError as error:
            raise RemoteProtocolError(f"the answer is not JSON: {error}") from None

    async def list(self, resource: Resource) -> Listed:
        """Return every object of a resource, in pages; raises what `get` does."""
        items: list[Object] = []
        token = ""
        while True:
            paging = {"limit": str(_PAGE_ITEMS)} | ({"continue": token} if token else {})
            document = await self.get(replace(resource, query={**resource.query, **paging}))
            items += items_of(document)
            meta = document.get("metadata") or {}
            token = meta.get("continue") or ""
            if not token:
                return Listed(items, str(meta.get("resourceVersion") or ""))

    async def watch(self, resource: Resource, version: str, take: Take) -> None:
        """Hand over changes after a resource version until the server ends the watch.

        Raises:
            OSError: The connection broke.
            GoneError: The server does not know the changes after that version any more.
            RemoteProtocolError: It refuses, or answers otherwise than expected.
        """
        wanted = {
            **resource.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(*_WATCH_S)),  # noqa: S311 - no secret
        }
        reader = ChangeReader(version)
        async with open_stream(
            self._section.server,
            Request(_target(replace(resource, query=wanted)), await self._headers()),
            timeout_s=self._section.timeout_s,
            tls=self._context,
        ) as stream:
            if stream.head.status == _NOT_REACHED:
                raise GoneError
            _check(stream.head.status, resource)
            await take(Changes([], version))
            while data := await stream.read():
                changes = reader.feed(data)
                if changes or reader.version != version:
                    version = reader.version
                    await take(Changes(changes, version))

    async def _headers(self) -> dict[str, str]:
        token = (await asyncio.to_thread(self._section.token_file.read_text)).strip()
        return {"authorization": f"Bearer {token}", "accept": "application/json"}


async def follow(
    api: KubernetesApi,
    resource: Resource,
    *,
    version: str,
    take: Take,
    failed: Callable[[str], None],
) -> None:
    """List and watch a resource until cancelled.

    Args:
        api: The server.
        resource: What is asked for.
        version: Where a watch goes on; empty: it begins with a list.
        take: Takes lists and changes, each before the next is asked for.
        failed: Takes the message of what failed; it is tried again.
    """
    backoff = Backoff(RESTART_MIN_S, RESTART_MAX_S, jitter=0.5)

    async def progress(found: Listed | Changes) -> None:
        nonlocal version
        await take(found)
        version = found.version
        backoff.reset()

    while True:
        try:
            if not version:
                await progress(await api.list(resource))
            await api.watch(resource, version, progress)
            await asyncio.sleep(_AGAIN_S)
        except GoneError:
            if not version:
                failed("HTTP 410: a list had expired before its last page was asked for")
            version = ""
            await asyncio.sleep(_AGAIN_S)
        except (OSError, RemoteProtocolError, ValueError) as error:
            failed(str(error) or type(error).__name__)
            await asyncio.sleep(backoff.next_wait(random.random()))  # noqa: S311 - no secret


def items_of(document: Any) -> list[Object]:
    """Return the objects of a list.

    Raises:
        RemoteProtocolError: It is none.
    """
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise RemoteProtocolError("the answer is no list of objects")
    items: list[Object] = document["items"]
    if not all(isinstance(one, dict) and isinstance(one.get("metadata"), dict) for one in items):
        raise RemoteProtocolError("the answer has an item that is no object")
    return items


def _check(status: int, resource: Resource) -> None:
    if status == _GONE:
        raise GoneError
    if status in _REFUSED:
        raise RemoteProtocolError(
            f"HTTP {status}: the service account may not ask for this;"
            f" let its role {resource.right}"
        )
    if status != 200:
        raise RemoteProtocolError(f"HTTP {status}")


def _target(resource: Resource) -> str:
    query = resource.query
    return f"{resource.path}?{urlencode(query)}" if query else resource.path


def _context(section: ApiSection, where: str) -> ssl.SSLContext | None:
    if section.server.startswith("http://"):
        return None
    try:
        context = client_tls(section.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{where}.ca_file: {section.ca_file}: {error}",
            fix="mount the service account's files, or name the authority's certificate",
        ) from None
    if not section.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
