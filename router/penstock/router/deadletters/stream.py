"""Dead letters in a stream of logd, beside their files: published over NATS, acked.

The file is the dead letter and the stream has a copy: a batch never waits for long, nor comes
again, because a copy cannot be stored. A dead letter that NATS or the stream does not take is
counted. Where NATS or logd is away dead letters wait for `WAIT_S`; then for `PAUSE_S` they go to
their files alone.

A dead letter's `Nats-Msg-Id` is made of job, sink, position in the log and code, so a refusal met
again within the stream's dedup window is stored once.
"""

import json
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog

from penstock.base.clock import BlockingClock
from penstock.base.extras import install_command
from penstock.logd.errors import LogdError, RefusedError, UnavailableError
from penstock.router.deadletters.replayable import DeadLetterFile
from penstock.router.deadletters.writer import as_line
from penstock.router.job.config import DeadLetterStream
from penstock.router.job.config_errors import WrongKeyError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.logd.publisher import BlockingPublisher

WAIT_S: Final = 10.0
"""Seconds for a dead letter to be stored, those of a change of leaders included."""

PAUSE_S: Final = 60.0
"""Seconds between two waits for what is away, and between two warnings."""

CHUNK_RECORDS: Final = 256
"""Maximum dead letters in flight; they share one wait, so that many failures cost no more time."""

_FIX: Final = "penstock router dlq publish JOB sends the files' dead letters to the stream later"


class NatsDeadLetterPublisher:
    """Publishes dead letters; connects when there is a first one. For any number of threads.

    Args:
        connect: Makes the publisher; without it that is one of NATS's.
        wait_s: Seconds that dead letters wait where NATS or logd is away.
        pause_s: Seconds until they wait again.

    Attributes:
        problem: Why the last dead letters are not all in the stream; None where they are.

    Raises:
        ConfigError: The extra `logd` is not installed.
    """

    def __init__(
        self,
        config: DeadLetterStream,
        clock: BlockingClock,
        *,
        connect: "Callable[[], BlockingPublisher] | None" = None,
        wait_s: float = WAIT_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        try:
            from penstock.logd.publisher import BlockingPublisher, PublishOptions
        except ImportError as error:
            raise WrongKeyError(
                f"dead_letter_stream: publishing needs {error.name}",
                fix=f"{install_command('logd')}, or leave dead_letter_stream out",
            ) from None
        options = PublishOptions(
            max_in_flight=CHUNK_RECORDS, retry_s=wait_s, connect_timeout_s=wait_s
        )
        self.problem: str | None = None
        self._connect = connect or (lambda: BlockingPublisher(config.nats, options))
        self._pause_ns = int(pause_s * 1e9)
        self._subject = config.subject
        self._clock = clock
        self._lock = threading.Lock()
        self._publisher: BlockingPublisher | None = None
        self._closed = False
        self._again_at_ns = self._tell_at_ns = clock.monotonic_ns()
        self._missed = 0
        self._log = structlog.get_logger()

    def publish(self, lines: Sequence[bytes]) -> int:
        """Store dead letters, a JSON object each; returns how many are not stored."""
        missed = 0
        for begin in range(0, len(lines), CHUNK_RECORDS):
            chunk = lines[begin : begin + CHUNK_RECORDS]
            if self._clock.monotonic_ns() < self._again_at_ns:
                missed += len(chunk)
                continue
            errors = self._publish(chunk)
            missed += len(errors)
            self._classify(errors)
        if missed:
            self._tell(missed)
        return missed

    def close(self) -> None:
        """Disconnect; what is under way is not stored, or nobody knows."""
        with self._lock:
            self._closed = True
            publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close(flush=False)

    def _publish(self, lines: Sequence[bytes]) -> list[LogdError]:
        """Publish dead letters; return the error of each one that failed."""
        acks: list[Future[Any]] = []
        errors: list[LogdError] = []
        try:
            publisher = self._connected()
            for line in lines:
                ack = publisher.submit(self._subject, line, message_id=_id(line))
                acks.append(ack)  # one by one: what was sent before a failure counts
        except UnavailableError as error:
            errors += [error] * (len(lines) - len(acks))
        for ack in acks:
            try:
                ack.result()
            except LogdError as error:
                errors.append(error)
        return errors

    def _connected(self) -> "BlockingPublisher":
        with self._lock:
            if self._closed:
                raise UnavailableError("the job ends")
            if self._publisher is None:
                self._publisher = self._connect()
            return self._publisher

    def _classify(self, errors: Sequence[LogdError]) -> None:
        """Note what is wrong, and whether it is waited for again soon."""
        away = [error for error in errors if not _is_for_good(error)]
        self.problem = str((away or errors)[0]) if errors else None
        if away:
            self._again_at_ns = self._clock.monotonic_ns() + self._pause_ns

    def _tell(self, missed: int) -> None:
        with self._lock:
            self._missed += missed
            now_ns = self._clock.monotonic_ns()
            if now_ns < self._tell_at_ns:
                return
            self._tell_at_ns = now_ns + self._pause_ns
            count, self._missed = self._missed, 0
        self._log.warning(
            "dead_letter_stream_failed",
            dead_letters=count,
            subject=self._subject,
            reason=self.problem,
            fix=_FIX,
        )


def publish_file(file: DeadLetterFile, stream: NatsDeadLetterPublisher) -> tuple[int, int]:
    """Send the dead letters of a file; returns how many there are, and how many are not stored.

    Raises:
        ConfigError: It holds something else, or cannot be read; what is before may be sent.
        UnavailableError: It has been moved meanwhile.
    """
    dead_letters, count, missed = file.dead_letters(), 0, 0
    while lines := [as_line(dead_letter) for dead_letter in islice(dead_letters, CHUNK_RECORDS)]:
        count += len(lines)
        missed += stream.publish(lines)
    return count, missed


def _is_for_good(error: LogdError) -> bool:
    """Return whether a retry is pointless for this dead letter, while others may succeed."""
    nack = getattr(error, "nack", None)
    return isinstance(error, RefusedError) and (nack is None or not nack.retryable)


def _id(line: bytes) -> str:
    dead_letter = json.loads(line)
    parts = ("job", "sink", "stream", "incarnation", "partition", "offset", "code")
    # Quoted, for a header holds no line ends, and codes are what destinations make of them.
    return "/".join(quote(str(dead_letter.get(part, "")), "", errors="replace") for part in parts)
