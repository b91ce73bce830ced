"""Answers to JetStream's API where no JetStream is: an error in its form that names the way here.

A client of JetStream that makes a stream, or reads one, asks on `$JS.API.>`. Where no server serves
that, the NATS server says "no responders" at once, which names no fix. With
`nats.jetstream_hints` logd subscribes there, in one queue group with all other nodes, and answers:

    {"type": "io.nats.jetstream.api.v1.stream_create_response",
     "error": {"code": 501, "err_code": 20009, "description": "this is Penstock's logd, ..."}}

Pull requests and direct gets are answered as JetStream refuses them, with a status line in place of
a body: `NATS/1.0 501 this is ...`. The code is none of JetStream's own, for clients replace the
text of some of those by theirs.

A JetStream must never be talked over. So logd asks on `$JS.API.INFO` first, and subscribes only if
there are no responders, or none but nodes of logd's. It goes on asking while it is subscribed, and
leaves when anybody else answers. Each new connection begins with the question.
"""

import asyncio
import random
import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import orjson
import structlog

from penstock.base.clock import Clock
from penstock.logd.format.subjects import is_inbox
from penstock.logd.intake.turn import Message
from penstock.logd.nats.connect import NatsAccess
from penstock.logd.nats.link import ANSWERS_ONLY, LinkEvent, LinkState, NatsLink

_PREFIX: Final = b"$JS.API."
_QUESTION: Final = b"$JS.API.INFO"
_QUEUE: Final = "penstock-jetstream-hints"
_CODE: Final = 501
_ERR_CODE: Final = 20009
_OURS: Final = b'"err_code":%d' % _ERR_CODE
_NO_RESPONDERS: Final = b"NATS/1.0 503"

_ANSWER_S: Final = 1.0
"""Seconds that a question waits for answers."""

_SERVING_S: Final = 2.0
"""Seconds between two questions while the hints are served: so long a JetStream that comes later
may be talked over."""

_AWAY_S: Final = 30.0

_GENERAL: Final = "this is Penstock's logd, not JetStream; js.publish() works as it is"
_STREAMS: Final = "streams: penstock logd streams create|ls|delete"
_READING: Final = "read with penstock logd tail, penstock.logd.client or Liftbridge's API"
_WAYS: Final = (
    (b"STREAM.MSG.", _READING),
    (b"DIRECT.", _READING),
    (b"CONSUMER.", _READING),
    (b"", _STREAMS),
)
_STATUS_ONLY: Final = (b"CONSUMER.MSG.NEXT.", b"DIRECT.GET.")
_LONGER: Final = ("MSG", "DURABLE", "LEADER")

_log = structlog.get_logger()


class Serving(StrEnum):
    """State of the hints.

    Attributes:
        UNKNOWN: No request was sent on this connection yet.
        HINTS: Served: no other server serves JetStream's API.
        JETSTREAM: Not served: a JetStream does.
        SILENT: Not served: a subscriber does not answer, or logd may not ask.
    """

    UNKNOWN = "unknown"
    HINTS = "hints"
    JETSTREAM = "jetstream"
    SILENT = "silent"


class JetStreamHints:
    """Serves the hints of one node, as long as `run` runs. Used on the event loop.

    Args:
        access: Access to NATS.
        node: This one's name.
        clock: Clock of the connection.
        stored: Whether a stream stores a subject: no request is answered there.

    Attributes:
        link: Its connection.
        serving: Whether hints are served.
        answered: Requests so far.
    """

    def __init__(
        self, access: NatsAccess, *, node: str, clock: Clock, stored: Callable[[bytes], bool]
    ) -> None:
        self.serving = Serving.UNKNOWN
        self.answered = 0
        self.link = NatsLink(
            access,
            name=f"{node}/jetstream-hints",
            on_messages=self._on_messages,
            rng=random.Random(),  # noqa: S311 - jitter, not a secret
            clock=clock,
            on_event=self._on_event,
            timing=ANSWERS_ONLY,
        )
        self._stored = stored
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._asked = 0
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._answers_sid = self.link.subscribe(f"{self._inbox}.*")
        self._api_sid = self.link.subscribe(f"{_PREFIX.decode()}>", _QUEUE)
        self.link.pause(self._api_sid)

    async def run(self) -> None:
        """Ask who serves the API, and serve it if nothing does, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run())
            tasks.create_task(self._watch())

    def info(self) -> dict[str, Any]:
        """Return the fields for `/status`."""
        return {"serving": self.serving.value, "answered": self.answered}

    async def _watch(self) -> None:
        while True:
            await self._connected.wait()
            found = await self._ask()
            if not self._connected.is_set():
                continue
            if found is not self.serving:
                self.serving = found
                _log.info("jetstream_hints_changed", serving=found.value)
            if found is Serving.HINTS:
                self.link.resume(self._api_sid)
            else:
                self.link.pause(self._api_sid)
            await asyncio.sleep(_SERVING_S if found is Serving.HINTS else _AWAY_S)

    async def _ask(self) -> Serving:
        """Ask on the API, and listen to all who answer."""
        self._asked += 1
        subject = f"{self._inbox}.{self._asked}".encode()
        self.link.write(b"PUB %b %b 0\r\n\r\n" % (_QUESTION, subject))
        found = Serving.SILENT
        try:
            async with asyncio.timeout(_ANSWER_S):
                while True:
                    answer = await self._answers.get()
                    if answer.subject != subject:
                        continue
                    if answer.headers.startswith(_NO_RESPONDERS):
                        return Serving.HINTS
                    if _OURS not in answer.payload:
                        return Serving.JETSTREAM
                    found = Serving.HINTS  # of this node or another; another node may answer, too
        except TimeoutError:
            return found

    def _on_event(self, event: LinkEvent) -> None:
        match event.state:
            case LinkState.LOST:
                self._connected.clear()
                self.link.pause(self._api_sid)  # the next server's is asked first
                self.serving = Serving.UNKNOWN
            case LinkState.RESTORED:
                self._connected.set()
            case _:
                pass

    def _on_messages(self, messages: dict[bytes, list[Message]]) -> None:
        for message in messages.get(self._answers_sid, ()):
            self._answers.put_nowait(message)
        for message in messages.get(self._api_sid, ()):
            if self._answerable(message.reply) and self.link.write(hint(message)):
                self.answered += 1

    def _answerable(self, reply: bytes) -> bool:
        """Return whether a reply subject is safe: a client must not make logd publish anywhere."""
        if is_inbox(reply.decode("utf-8", "replace")):
            return True
        return (
            bool(reply) and not reply.startswith((b"$", b"_PENSTOCK")) and not self._stored(reply)
        )


def hint(request: Message) -> bytes:
    """The protocol line that answers a request on JetStream's API."""
    asked = request.subject.removeprefix(_PREFIX)
    way = next(way for prefix, way in _WAYS if asked.startswith(prefix))
    text = f"{_GENERAL}; {way}; see docs/compatibility.md"
    if asked.startswith(_STATUS_ONLY):
        head = f"NATS/1.0 {_CODE} {text}\r\n\r\n".encode()
        return b"HPUB %b %d %d\r\n%b\r\n" % (request.reply, len(head), len(head), head)
    error = {"code": _CODE, "err_code": _ERR_CODE, "description": text}
    body = orjson.dumps({"type": _type_of(asked), "error": error})
    return b"PUB %b %d\r\n%b\r\n" % (request.reply, len(body), body)


def _type_of(asked: bytes) -> str:
    """The type of JetStream's answer: `STREAM.CREATE.orders` is a `stream_create_response`."""
    words = asked.decode("ascii", "replace").split(".")
    if words == ["INFO"]:
        words = ["ACCOUNT", "INFO"]
    words = words[: 3 if words[1:2] and words[1] in _LONGER else 2]
    name = "_".join(word.lower() for word in words if word != "DURABLE")
    return f"io.nats.jetstream.api.v1.{name}_response"
