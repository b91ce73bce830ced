"""Dead letters in a stream of logd, beside their files: published over NATS, acked.

A letter's `Nats-Msg-Id` is made of job, sink, place in the log and code, so a refusal met again
within the stream's dedup window is stored once.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.router.config import DeadLetterStream
from penstock.service import ConfigError

if TYPE_CHECKING:
    from concurrent.futures import Future


class NatsLetterStream:
    """Publishes letters; connects when there is a first one."""

    def __init__(self, config: DeadLetterStream) -> None:
        self._config = config
        self._publisher: Any = None

    def publish(self, lines: Sequence[str]) -> None:
        """Store letters; returns when all are.

        Raises:
            UnavailableError: of logd's: NATS or logd cannot be reached.
            RefusedError: of logd's: no stream stores the subject, or it is not let in.
            ConfigError: The extra `logd` is not installed.
        """
        publisher = self._connected()
        acks: list[Future[Any]] = [
            publisher.submit(self._config.subject, line.encode(), message_id=_id(line))
            for line in lines
        ]
        for ack in acks:
            ack.result()

    def close(self) -> None:
        """Disconnect."""
        if self._publisher is not None:
            self._publisher.close(flush=False)
            self._publisher = None

    def _connected(self) -> Any:
        if self._publisher is None:
            try:
                from penstock.logd.publisher import BlockingPublisher
            except ImportError as error:
                raise ConfigError(
                    f"dead_letter_stream: publishing needs {error.name}",
                    fix="pip install 'penstock[logd]', or leave dead_letter_stream out",
                ) from None
            self._publisher = BlockingPublisher(self._config.nats)
        return self._publisher


def _id(line: str) -> str:
    letter = json.loads(line)
    parts = ("job", "sink", "stream", "incarnation", "partition", "offset", "code")
    return "/".join(str(letter[part]) for part in parts)
