"""The admin socket: what changes a running collector, for its own user and root alone.

A Unix stream socket of mode 0600. A client sends one line, a JSON object with `do` and what the
action needs, and gets lines back, each a JSON object:

    {"ok": true, ...}           it is done, and with what result
    {"ok": false, "error": "…"}  it is not, and why
    {"record": …}               of an action that goes on, until either side closes

The kernel says who the other side is. HTTP (`admin`) stays for reading.
"""

import asyncio
import contextlib
import json
import os
import socket
import stat
import struct
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.base.sockets import ACCEPT_AT_ONCE, widen_backlog
from penstock.collector.agent.reload import Report
from penstock.collector.agent.taps import Taps, read_tap
from penstock.collector.drops.journal import DropJournal
from penstock.collector.drops.query import RecordQuery
from penstock.collector.drops.sampler import Missed
from penstock.collector.limits import (
    CONTROL_ANSWER_BYTES_MAX,
    CONTROL_CONNECTIONS_MAX,
    CONTROL_LINE_BYTES_MAX,
    READ_BYTES,
)
from penstock.collector.spool.quarantine import facts_of
from penstock.collector.spool.replay import Replayer, Wanted
from penstock.service import (
    ConfigError,
    ExitCode,
    ServiceError,
    Status,
    UnavailableError,
)

SOCKET_NAME: Final = "admin.sock"
_CREDENTIALS: Final = struct.Struct("3i")
_WAIT_S: Final = 10.0

Action = Callable[[Mapping[str, Any]], AsyncIterator[Mapping[str, Any]]]
"""Does what a request asks; yields the lines of the answer.

Raises:
    ServiceError: It cannot be done.
    ValueError: The request is wrong.
"""


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """The socket's name by its directory's descriptor: names of sockets may have 107 bytes only."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


class ControlServer:
    """Serves actions until it is closed.

    Args:
        path: The socket's path; a socket that a process left there is replaced.
        actions: The actions by name.
    """

    def __init__(self, path: Path, actions: Mapping[str, Action]) -> None:
        self._path = path
        self._actions = actions
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: The path cannot be a socket.
        """
        listening = socket.socket(socket.AF_UNIX)
        try:
            self._bind(listening)
            self._server = await asyncio.start_unix_server(
                self._accept,
                sock=listening,
                limit=CONTROL_LINE_BYTES_MAX,
                backlog=ACCEPT_AT_ONCE,
            )
            widen_backlog(self._server)
        except OSError as error:
            listening.close()
            raise ConfigError(
                f"admin_socket: cannot listen on {self._path}: {error.strerror}",
                fix="choose a path in a directory that this process may write to",
            ) from None

    def _bind(self, listening: socket.socket) -> None:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(self._path.lstat().st_mode):
                self._path.unlink()
        before = os.umask(0o177)
        try:
            with _address(self._path) as address:
                listening.bind(address)
        finally:
            os.umask(before)

    async def close(self) -> None:
        """Stop listening and end what goes on."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONTROL_CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            user = _user_of(writer.get_extra_info("socket"))
            if user not in (0, os.geteuid()):
                self._log.warning("admin_request_refused", uid=user)
                _answer(writer, {"ok": False, "error": f"user {user} may not"})
            else:
                await self._act(reader, writer)
            await writer.drain()
        except (ConnectionError, TimeoutError):
            pass  # the client went away, or never said what for
        finally:
            writer.close()

    async def _act(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_WAIT_S):
                line = await reader.readline()
            request = json.loads(line)
            action = self._actions[request["do"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            known = ", ".join(sorted(self._actions))
            _answer(writer, {"ok": False, "error": f"not a request; `do` is one of {known}"})
            return
        self._log.info("admin_action_requested", action=request["do"])
        gone = asyncio.ensure_future(reader.read(1))
        acting = asyncio.ensure_future(self._carry_out(action, request, writer))
        try:
            await asyncio.wait((gone, acting), return_when=asyncio.FIRST_COMPLETED)
            if not acting.done() and request.get("follow"):
                acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        finally:
            gone.cancel()
            acting.cancel()

    async def _carry_out(
        self, action: Action, request: Mapping[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        try:
            async for line in action(request):
                _answer(writer, line)
                await writer.drain()
        except ServiceError as error:
            _answer(writer, {"ok": False, "error": str(error)})
        except ValueError as error:
            _answer(writer, {"ok": False, "error": f"the request is wrong: {error}"})
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the client gets it, and the log
            self._log.exception("admin_action_failed", action=request["do"])
            _answer(writer, {"ok": False, "error": f"it failed: {type(error).__name__}: {error}"})


def _answer(writer: asyncio.StreamWriter, line: Mapping[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(line).encode() + b"\n")


def _user_of(connection: Any) -> int:
    """The user that the kernel says is on the other side."""
    size = _CREDENTIALS.size
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return int(user)


def ask(path: Path, request: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
    """Ask a running collector; yields the lines of its answer.

    Raises:
        UnavailableError: No collector listens there, or it is another user's.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with _address(path) as address:
                connection.connect(address)
        except OSError as error:
            raise UnavailableError(
                f"no collector answers on {path}: {error.strerror}",
                fix="start it, name its socket or data directory, or ask as its user",
            ) from None
        # Another user is refused before the request is read; the client then gets a reset.
        with contextlib.suppress(ConnectionError):
            connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines, contextlib.suppress(ConnectionError):
            for line in lines:
                yield json.loads(line)


async def asking(path: Path, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """`ask`, on the running event loop; an action that goes on ends with the caller.

    Raises:
        UnavailableError: No collector listens there, or it is another user's.
    """
    try:
        with _address(path) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=READ_BYTES)
    except OSError as error:
        raise UnavailableError(
            f"no collector answers on {path}: {error.strerror}", fix="try again when it runs"
        ) from None
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(json.dumps(request).encode() + b"\n")
            while line := await _read_line(reader):
                yield json.loads(line)
    finally:
        writer.close()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """A whole line, however much longer than what lies ready for who reads slowly; empty: none.

    Raises:
        UnavailableError: It is longer than any answer.
    """
    parts: list[bytes] = []
    while sum(map(len, parts)) <= CONTROL_ANSWER_BYTES_MAX:
        try:
            parts.append(await reader.readuntil(b"\n"))
        except asyncio.LimitOverrunError as error:
            parts.append(await reader.readexactly(error.consumed))
        except asyncio.IncompleteReadError:
            return b""
        else:
            return b"".join(parts)
    raise UnavailableError(
        f"an answer has more than {CONTROL_ANSWER_BYTES_MAX} bytes",
        fix="ask with the collector stopped",
    )


def ask_once(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for something that has one answer.

    Raises:
        ConfigError: It was not done, for the configuration is wrong.
        UnavailableError: It was not done.
    """
    for answer in ask(path, request):
        if answer.get("ok"):
            return answer
        reason, _, fix = str(answer.get("error", "refused")).partition("\n  fix: ")
        wrong = answer.get("exit_code") == ExitCode.CONFIG
        refused = ConfigError if wrong else UnavailableError
        raise refused(reason, fix=fix or "mend what it says, and ask again")
    raise UnavailableError("the collector ended the connection", fix="look at its log")


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
        drops: DropJournal,
        taps: Taps,
        status: Callable[[], Status],
    ) -> None:
        self._reload = reload
        self._replayer = replayer
        self._drops = drops
        self._taps = taps
        self._status = status

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

    async def drops(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """What transforms dropped, oldest first, each as `drop`; `RecordQuery` says which.

        Each kind of drop that was not recorded follows as `missed`.
        """
        query = RecordQuery.read(request)
        missed = Missed()
        await self._drops.flush()
        async for facts in self._drops.matching(query, missed):
            yield {"drop": facts}
        for kind, count in sorted(missed.items()):
            yield {"missed": {**kind._asdict(), "records": count}}
        yield {"ok": True}

    async def quarantine(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """What is in quarantine, oldest first, each as `kept`; `RecordQuery` says which."""
        query = RecordQuery.read(request)
        newest: deque[dict[str, Any]] = deque(maxlen=query.limit or None)
        async for kept, replayed in self._replayer.kept():
            facts = facts_of(kept, replayed=replayed)
            if not query.takes(facts):
                continue
            if query.limit:
                newest.append(facts)
            else:
                yield {"kept": facts}
        for facts in newest:
            yield {"kept": facts}
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
        """Yield the fields of `/status`."""
        yield {"ok": True, "status": asdict(self._status())}

    async def tap(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Records as they pass: `point`, `source`, `subject`, `every`; goes on until closed."""
        with self._taps.open(read_tap(request)) as tap:
            yield {"ok": True}
            while True:
                yield await tap.next()
