"""What a sink is to the job that feeds it."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.router.clock import Clock
from penstock.router.errors import StoppedError
from penstock.router.telemetry import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What every sink gets from its job.

    Attributes:
        job: The job's name.
        sink: The sink's name.
        incarnations: Of each stream, in the batch in work; a stream made again has its offsets
            again. The query keeps them up to date.
        state_dir: The sink's own directory, kept with the checkpoints.
        dead_letters: Directory for what the destination refuses for good.
        meter: Where the sink counts.
        stop: Set when the job ends; a sink that waits must give up.
        clock: Time.
    """

    job: str
    sink: str
    incarnations: dict[str, str]
    state_dir: Path
    dead_letters: Path
    meter: Meter
    stop: threading.Event
    clock: Clock

    def wait(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            StoppedError: The job ends.
        """
        if self.stop.wait(seconds):
            raise StoppedError(f"sink {self.sink} gave up its batch because the job stops")

    def stream_tag(self, stream: str) -> str:
        """The stream's name with a mark of its incarnation, for names that must not repeat."""
        return f"{stream}.{self.incarnations.get(stream, '')[:8] or '0'}"


class Sink(Protocol):
    """One destination.

    `write` is called with the batches of one query, one after the other. A batch that was not
    finished, because of an error or a crash, comes again with the same records: what was written of
    it must then be replaced or recognised, as far as the destination allows.
    """

    columns: tuple[str, ...]
    """The columns that `write` needs."""

    def open(self) -> None:
        """Check the destination and remove what a crash left, before the first batch.

        Raises:
            ConfigError: The destination cannot be used.
        """
        ...

    def write(self, rows: pa.Table) -> None:
        """Bring the rows of one batch, at least one, to the destination for good.

        Raises:
            StoppedError: The job ends and the batch is not finished.
        """
        ...
