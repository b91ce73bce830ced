"""From a call of a logger to the emitter: sampled, folded, made a line, offered. Never raises."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from penstock.specs import clock
from penstock.specs.core.folding import Folder, Step
from penstock.specs.core.sampling import Sampler
from penstock.specs.log_line import LogLines, encode_log, sanitised
from penstock.specs.log_record import FAILED_SEVERITY
from penstock.specs.native import allocate_lock
from penstock.specs.traces import trace_fields

REPEATED: Final = "log.repeated"
"""The attribute that says for how many records one stands."""


class LineSink(Protocol):
    """Takes lines; the emitter."""

    def emit(self, kind: str, line: bytes, severity_number: int = 9) -> bool:
        """Offer one line."""
        ...

    def lose(self, kind: str, reason: str, count: int = 1) -> None:
        """Count records that were not offered."""
        ...


class LogWriter:
    """What structlog's and the standard library's logging have in common.

    Args:
        sink: Gets the lines, and counts what is left out (``sampled``, ``repeated``).
        lines: Makes them.
        sampler: Leaves out traces; never errors.
        folder: Folds what repeats itself.
        encode: Makes a record's line, or whatever the way out takes for one.
    """

    def __init__(
        self,
        sink: LineSink,
        lines: LogLines,
        sampler: Sampler | None = None,
        folder: Folder | None = None,
        encode: Callable[[dict[str, Any]], bytes] = encode_log,
    ) -> None:
        self._sink = sink
        self._lines = lines
        self._sampler = sampler
        self._folder = folder
        self._encode = encode
        self._lock = allocate_lock()

    def write(
        self,
        body: Any,
        severity_number: int,
        fields: Mapping[str, Any],
        *,
        scope: Any = None,
        error: BaseException | None = None,
        time_unix_nano: int | None = None,
    ) -> None:
        """Emit one log record."""
        sampled = self._sampler is not None and severity_number < FAILED_SEVERITY
        try:
            if sampled and not self._keeps():
                self._sink.lose("log", "sampled")
                return
            record = self._lines.record(
                body, severity_number, fields, scope=scope, error=error,
                time_unix_nano=time_unix_nano,
            )  # fmt: skip
            if sampled:
                self._weigh(record)
            folder = self._folder
            if folder is not None:
                step = folder.judge(record["body"], record["time_unix_nano"])
                if step is not Step.PASS and self._is_folded(folder, step, record):
                    return
            line = self._encode(record)
        except Exception as failure:  # noqa: BLE001 - the application must not fail because of it
            line = self._encode(sanitised(body, severity_number, type(failure).__name__))
        self._sink.emit("log", line, severity_number)

    def release(self, *, everything: bool = False) -> bool:
        """Emit what was folded in a window that is over, or in any; True when some is left."""
        folder = self._folder
        if folder is None or not folder.is_holding:
            return False
        if everything or folder.is_over(clock.unix_ns()):
            self._roll(folder, clock.unix_ns())
        return folder.is_holding

    def renew(self) -> None:
        """In a forked child: what was folded is the parent's to say."""
        self._lock = allocate_lock()
        if self._folder is not None:
            self._folder.due(0)

    def _keeps(self) -> bool:
        """Whether the running trace, if there is one, is in the sample."""
        trace_id = trace_fields().get("trace_id")
        return trace_id is None or self._sampler is None or self._sampler.keeps(trace_id)

    def _weigh(self, record: dict[str, Any]) -> None:
        if "trace_id" in record and self._sampler is not None:
            record["sample_weight"] = self._sampler.weight

    def _is_folded(self, folder: Folder, step: Step, record: dict[str, Any]) -> bool:
        if step is Step.ROLL:
            self._roll(folder, record["time_unix_nano"])
            step = folder.judge(record["body"], record["time_unix_nano"])
        if step is not Step.COMPARE:
            return False
        key = repr([record.get(name) for name in _SAME])
        # A signal handler may have interrupted this very thread in here: never wait.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return folder.swallow(record["body"], key, record)
        finally:
            self._lock.release()

    def _roll(self, folder: Folder, now: int) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread is about it
        try:
            due = folder.due(now)
        finally:
            self._lock.release()
        for record, times in due:
            attributes = {**record.get("attributes", {}), REPEATED: times}
            try:
                line = self._encode({**record, "attributes": attributes})
            except Exception:  # noqa: BLE001 - neither the flusher nor the application must fail
                self._sink.lose("log", "not_encodable", times)
                continue
            # It stands for all of them: the others are counted as dropped, this one is emitted.
            self._sink.lose("log", "repeated", times - 1)
            self._sink.emit("log", line, record["severity_number"])


_SAME: Final = ("scope", "severity_number", "body", "attributes", "context")
"""What is equal in records that repeat one another: not their times, nor their traces."""
