"""The connection of the NATS sink: an event loop in its own thread."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error

from penstock.logd.publisher.connecting import connect_within, is_refusal, nats_client
from penstock.router.delivery.result import Fault
from penstock.router.sinks.http.settings import Tls
from penstock.router.sinks.nats.sink import NO_ANSWER, Fate, Message, NatsSink, Outcome, read_answer
from penstock.service import LoopFailures

_AGAIN_S: Final = 0.1
_LOOK_S: Final = 0.1
_END_S: Final = 2.0

Result = TypeVar("Result")

_NOBODY: Final = "503"
"""The status that NATS answers with where nobody listens on the subject."""


class Connection:
    """One connection to NATS, made when it is needed and made again when it is lost.

    Args:
        name: Name of the connection in the server's monitoring.
    """

    def __init__(
        self,
        config: NatsSink,
        name: str,
        *,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._new_loop = new_loop
        self._config = config
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._problem = ""
        self._changed = asyncio.Event()

    def open(self) -> int:
        """Connect where there is no connection; returns how many bytes a message may have.

        Raises:
            ConnectionError: No server can be reached.
            OSError: None lets us in, or a secret cannot be read.
        """
        if self._client is None or not self._client.is_connected:
            self._run(self._connect())
        return int(self._client.max_payload)

    def exchange(self, messages: Sequence[Message]) -> tuple[list[Outcome], str]:
        """Publish messages; returns what became of each, and what else the server said."""
        return self._run(self._exchange(messages))

    def close(self) -> None:
        """Disconnect and end the thread."""
        if self._loop is not None:
            self._run(self._disconnect())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    async def _connect(self) -> None:
        await self._disconnect()
        config, self._problem = self._config, ""
        options: dict[str, Any] = {
            "servers": config.servers.split(","),
            "name": f"penstock {self._name}",
            # The sink waits as its settings say.
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": _AGAIN_S,
            "connect_timeout": config.timeout_s,
            "error_cb": self._note,
            **_login(config),
        }
        client = nats_client(encrypted="tls" in options)
        try:
            await connect_within(client, config.timeout_s, **options)
        except Exception as error:  # noqa: BLE001 - whatever it met, it tries again
            await _close(client)
            said = self._problem or _said(error)
            refused = isinstance(error, PermissionError | ssl.SSLCertVerificationError)
            refused = refused or is_refusal(said)
            raise (PermissionError if refused else ConnectionError)(f"NATS: {said}") from None
        self._client = client

    async def _exchange(self, messages: Sequence[Message]) -> tuple[list[Outcome], str]:
        unknown = Outcome(Fate.UNKNOWN, Fault(NO_ANSWER, "no answer"))
        stored = Outcome(Fate.STORED)
        outcomes = dict.fromkeys(range(len(messages)), unknown)
        self._problem = ""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                if self._config.acknowledge:
                    await self._publish_and_wait(messages, outcomes)
                else:
                    await self._while_connected(self._publish(messages))
                    await self._while_connected(self._client.flush(self._config.timeout_s))
                    if not self._problem:  # else the server has said that it may not have them
                        outcomes = dict.fromkeys(outcomes, stored)
        except (Error, OSError) as error:  # a TimeoutError is an OSError
            waited = f"no answer within {self._config.timeout_s:g} s"
            text = waited if isinstance(error, TimeoutError) else str(error)
            self._problem = self._problem or f"NATS: {text}"
            await self._disconnect()
        return [*outcomes.values()], self._problem

    async def _publish_and_wait(
        self, messages: Sequence[Message], outcomes: dict[int, Outcome]
    ) -> None:
        """Fill `outcomes` in until each message has its own.

        Raises:
            OSError: The connection is lost meanwhile.
        """
        missing = set(outcomes)
        if not missing:
            return

        async def answered(message: Msg) -> None:
            index = int(message.subject.rpartition(".")[2])
            outcomes[index] = _outcome(message)
            missing.discard(index)
            if not missing:
                self._changed.set()

        self._changed.clear()
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(f"{inbox}.*", cb=answered)
        await self._while_connected(self._publish(messages, inbox))
        await self._while_connected(self._changed.wait())
        await subscription.unsubscribe()

    async def _publish(self, messages: Sequence[Message], inbox: str = "") -> None:
        for index, message in enumerate(messages):
            await self._client.publish(
                message.subject,
                message.payload,
                reply=f"{inbox}.{index}" if inbox else "",
                headers=dict(message.headers),
            )

    async def _while_connected(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that nobody ends when nats-py closes the connection.

        Raises:
            OSError: It did.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if not self._client.is_connected:
                    raise ConnectionError("the connection was lost")
                await asyncio.wait({task}, timeout=_LOOK_S)
            task.result()
        finally:
            task.cancel()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def _note(self, error: Exception) -> None:
        self._problem = str(error) or type(error).__name__

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop is None:
            self._loop = self._new_loop()
            self._loop.set_exception_handler(LoopFailures())
            threading.Thread(
                target=_turn, args=(self._loop,), name="penstock-nats-sink", daemon=True
            ).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _close(client: Any) -> None:
    """Close a client, whatever it has against that.

    nats-py asserts when it has not begun to connect, and waits for ever for the end of a connection
    on which it did not trust the server.
    """
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait({closing}, timeout=_END_S)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)


def _said(error: Exception) -> str:
    """Return the error's text; with its type where nats-py did not foresee the answer."""
    text = str(error) or type(error).__name__
    is_foreseen = isinstance(error, Error | OSError)
    return text if is_foreseen else f"the answer cannot be read ({type(error).__name__}: {text})"


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _outcome(message: Msg) -> Outcome:
    if (message.headers or {}).get("Status") == _NOBODY:
        text = "nobody listens: no stream stores the subject, or it is away"
        return Outcome(Fate.LATER, Fault("nats_503", text))
    return read_answer(message.data)


def _login(config: NatsSink) -> dict[str, Any]:
    """Return the credentials of the connection.

    Raises:
        OSError: A secret or certificate cannot be read.
    """
    found: dict[str, Any] = {
        "user": config.user,
        "password": config.password.read() if config.password else None,
        "token": config.token.read() if config.token else None,
        "user_credentials": config.credentials_file,
    }
    if "tls://" in config.servers or config.tls != Tls():
        found["tls"] = config.tls.context()
    return {name: value for name, value in found.items() if value is not None}
