"""Batches from the Penstock spec library, over a Unix stream socket.

Every batch is answered: acknowledged once it is durable in the spool, or refused with a reason and
whether sending it again can help. See `penstock.collector.sources.unix.framing` for the framing.
"""

import asyncio
import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

import structlog
from pydantic import Field
from typing_extensions import override

from penstock.base.clock import Clock
from penstock.collector import failpoints
from penstock.collector.errors import RemoteProtocolError, SpoolFailedError, SpoolFullError
from penstock.collector.ledger import SENDER_DROPPED, Ledger
from penstock.collector.limits import READ_BYTES, SPOOL_WRITER_LIMITS, SpoolWriterLimits
from penstock.collector.sources.network.listener import Listener
from penstock.collector.sources.settings import ListeningSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.sources.unix.apps import MAX_SENDERS, BatchReport, SenderReport
from penstock.collector.sources.unix.framing import (
    BatchHeader,
    FrameReader,
    decode_batch_header,
    encode_ack,
    encode_nack,
)
from penstock.collector.spool.memory_budget import Charge, Share
from penstock.collector.spool.spool import Spooling, Unit
from penstock.service import SocketPath
from penstock.service.config import OCTAL

_DROP_REASONS: Final = frozenset(
    {
        "bad_kind",
        "dimension_overflow",
        "not_encodable",
        "queue_full",
        "reentrant",
        "refused",
        "repeated",
        "sampled",
        "spill_full",
        "too_large",
    }
)
"""Reasons of the spec library; a sender's own words must not become names of series."""


class UnixSettings(ListeningSettings):
    """Batches from the Penstock spec library over a Unix stream socket; acknowledged."""

    type: Literal["unix"]
    path: SocketPath
    mode: int = Field(default=0o660, ge=0, le=0o777, json_schema_extra={"format": OCTAL})
    max_senders: int = Field(
        default=MAX_SENDERS,
        ge=1,
        le=10_000,
        description="processes, and services of ended ones, that the account tells apart",
    )


@dataclass(slots=True)
class Connection:
    """One connection of a sender.

    Attributes:
        epoch: The spool's, when the connection began.
        charge: Charge of its bytes against the source's share.
        refused: Per sender, the batch that it must send again before anything later is taken.
        senders: Senders whose reports it has brought.
    """

    writer: asyncio.StreamWriter
    epoch: int
    charge: Charge
    refused: dict[str, int] = field(default_factory=dict)
    senders: set[str] = field(default_factory=set)

    def answer(self, frame: bytes) -> None:
        """Send a frame, unless the connection is closing."""
        if not self.writer.is_closing():
            self.writer.write(frame)


class UnixSource(Source):
    """Listens on one socket."""

    settings = UnixSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(
            context.name,
            settings,
            spool=context.spool,
            ledger=context.ledger,
            clock=context.clock,
            share=context.share,
        )

    def __init__(  # noqa: PLR0913 - what it receives with
        self,
        name: str,
        section: UnixSettings,
        *,
        spool: Spooling,
        ledger: Ledger,
        clock: Clock,
        share: Share,
        limits: SpoolWriterLimits = SPOOL_WRITER_LIMITS,
    ) -> None:
        self.name = name
        self._section = section
        self._spool = spool
        self._ledger = ledger
        self._clock = clock
        self._share = share
        self._limits = limits
        self._listener = Listener(
            name,
            self._serve,
            max_connections=section.max_connections,
            note=self._note,
            descriptors=share.descriptors,
            unread_answer_s=limits.unread_answer_s,
        )
        self._apps = ledger.apps_of(name)
        self._apps.max_senders = section.max_senders
        self._log = structlog.get_logger().bind(source=name)

    @property
    @override
    def endpoint(self) -> str | None:
        return self._listener.endpoint

    @override
    async def start(self) -> None:
        await self._listener.listen_unix(self._section.path, self._section.mode)

    @override
    async def run(self) -> None:
        await asyncio.Event().wait()

    @override
    async def stop(self) -> None:
        await self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        with Charge(self._share) as charge:
            connection = Connection(writer, self._spool.epoch, charge)
            try:
                while await self._receive(frames, reader, connection):
                    async with asyncio.timeout(self._limits.unfinished_timeout_s):
                        await writer.drain()
            except TimeoutError:  # who reads no answers must not hold room or a place for ever
                self._note("answers_unread", 1)
            except RemoteProtocolError as error:
                self._note("protocol_errors", 1)
                self._log.warning("protocol_error", error=str(error))
            finally:
                for sender in connection.senders:
                    self._apps.disconnect(sender, self._clock.monotonic_ns())

    async def _receive(
        self, frames: FrameReader, reader: asyncio.StreamReader, connection: Connection
    ) -> bool:
        """Take what one read brings; false when the connection must end.

        Senders are held back for want of room, but not in the middle of a frame: what lies here of
        it takes room itself. They send again what was not answered.
        """
        begun, limits = frames.waiting_bytes > 0, self._limits
        try:
            async with asyncio.timeout(limits.unfinished_timeout_s if begun else None):
                data = await reader.read(READ_BYTES * 4)
        except TimeoutError:
            self._note("messages_unfinished", 1)
            return False
        if not data:
            return False
        wait_s = limits.unfinished_wait_s if begun else None
        if not await connection.charge.wait(len(data), wait_s):
            self._note("connections_ended_no_room", 1)
            return False
        for frame in frames.feed(data):
            if not await self._take_frame(frame, connection):
                return False
        charge = connection.charge  # of framing, and of frames that were answered at once
        charge.split(max(0, charge.size - frames.waiting_bytes)).close()
        return True

    async def _take_frame(self, frame: bytes, connection: Connection) -> bool:
        """Take a batch or refuse it for good; false when the connection must end."""
        try:
            header = decode_batch_header(frame)
        except RemoteProtocolError as error:
            if error.sequence is None:
                raise
            self._ledger[self.name].notes["refused_bad_header"] += 1
            connection.answer(encode_nack(error.sequence, str(error), retry=False))
            return True
        return await self._take(header, frame, connection)

    async def _take(self, header: BatchHeader, frame: bytes, connection: Connection) -> bool:
        """Put a batch into the spool; false when the connection must end.

        After a refusal that may be tried again nothing later of that sender is taken on the
        connection: the refused batch would be taken for a repeat when it comes again.
        """
        if header.sequence > connection.refused.get(header.sender, header.sequence):
            connection.answer(encode_nack(header.sequence, "after_a_refused_batch", retry=True))
            return True
        unit = Unit(
            source=self.name,
            format="unix",
            payload=frame,
            count=header.count,
            received_ns=self._clock.unix_ns(),
            sender=f"{self.name}\n{header.sender}",
            sequence=header.sequence,
        )
        try:
            future = await self._spool.put(unit, epoch=connection.epoch)
        except SpoolFullError as error:
            self._ledger[self.name].notes["refused_spool_full"] += header.count
            connection.answer(encode_nack(header.sequence, "spool_full", retry=not error.for_ever))
            if not error.for_ever:
                connection.refused[header.sender] = header.sequence
            return True
        except SpoolFailedError as error:
            connection.answer(
                encode_nack(header.sequence, f"spool_failed: {error}"[:200], retry=True)
            )
            return False
        if connection.refused.get(header.sender) == header.sequence:
            del connection.refused[header.sender]
        if header.account is not None:
            self._note_account(header, header.account, connection)
        if header.dropped:
            self._note_drops(header, reports=header.sender in connection.senders)
        if future is None:
            self._repeat(header)
            self._apps.durable(header.sender, header.sequence)
            connection.answer(encode_ack(header.sequence))
        else:
            part = connection.charge.split(min(len(frame), connection.charge.size))
            is_new = self._apps.begin_write(header.sender, header.sequence)
            future.add_done_callback(lambda _: part.close())
            future.add_done_callback(
                functools.partial(self._answer, header, connection, is_new=is_new)
            )
        return True

    def _answer(
        self,
        header: BatchHeader,
        connection: Connection,
        done: "asyncio.Future[int]",
        *,
        is_new: bool,
    ) -> None:
        self._apps.end_write(header.sender)
        if done.cancelled() or done.exception() is not None:
            connection.answer(encode_nack(header.sequence, "spool_failed", retry=True))
            connection.writer.close()
        else:
            failpoints.passed("acked_before_answer")
            self._apps.durable(header.sender, header.sequence)
            if is_new and header.sender not in connection.senders:
                self._sums(header)["acked"] += header.count
            connection.answer(encode_ack(header.sequence))

    def _note(self, what: str, count: int) -> None:
        self._ledger[self.name].notes[what] += count

    def _repeat(self, header: BatchHeader) -> None:
        self._ledger[self.name].notes["repeated"] += header.count

    def _note_account(
        self, header: BatchHeader, account: SenderReport, connection: Connection
    ) -> None:
        dropped = Counter[str]()
        for reasons in header.dropped.values():
            for reason, count in reasons.items():
                dropped[_known(reason)] += count
        report = BatchReport(
            header.service, header.sequence, header.count, account, dropped, self._clock.unix_ns()
        )
        is_told_apart = self._apps.report(header.sender, report, self._clock.monotonic_ns())
        if is_told_apart and header.sender not in connection.senders:
            connection.senders.add(header.sender)
            self._apps.connect(header.sender)

    def _sums(self, header: BatchHeader) -> Counter[str]:
        """The sums that have a batch of a sender that is not told apart."""
        return self._apps.unreported if header.account is None else self._apps.untracked

    def _note_drops(self, header: BatchHeader, *, reports: bool) -> None:
        """A sender's own losses, cumulative since it started; shown beside the account."""
        notes = self._ledger[self.name].notes
        for reason, more in self._apps.new_drops(header.sender, header.dropped).items():
            notes[SENDER_DROPPED + _known(reason)] += more
            if not reports:
                self._sums(header)[f"dropped_{_known(reason)}"] += more


def _known(reason: str) -> str:
    return reason if reason in _DROP_REASONS else "other"
