"""The process's emitter, as `setup` made it, for records that emit themselves."""

from typing import TYPE_CHECKING, Any, Protocol

from penstock.specs.emit.context import bound, trace_fields
from penstock.specs.limits import ATTRIBUTES_MAX
from penstock.specs.models.envelope import Context, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.specs.emit.log_writer import LogWriter
    from penstock.specs.emit.system_metrics import MachineFacts


class Sink(Protocol):
    """Takes records; never raises, never waits. The emitter."""

    @property
    def logs(self) -> "LogWriter":
        """Takes the calls of loggers."""
        ...

    @property
    def facts(self) -> "MachineFacts | None":
        """The machine's figures for every record."""
        ...

    @property
    def is_busy(self) -> bool:
        """True if this thread is inside the emitter already; signal handlers check it."""
        ...

    def emit_record(self, record: Record) -> bool:
        """Offer a record; False when it was dropped."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Send all that is queued; True when all of it was answered in time."""
        ...


_sink: Sink | None = None


def set_sink(sink: Sink | None) -> None:
    """Choose where records of this process go; None takes the choice back."""
    global _sink  # noqa: PLW0603 - one process, one emitter
    _sink = sink


def sink() -> Sink | None:
    """The place records of this process go to; None before `setup`."""
    return _sink


def emit_here(record: Record) -> bool:
    """Emit a record with the trace ids and the context of the running task.

    False when it was dropped, also because there was no `setup`.
    """
    if _sink is None:
        return False
    try:
        whole = _with_context(record, _sink)
    except Exception:  # noqa: BLE001 - the application must not fail because of its telemetry
        whole = record
    return _sink.emit_record(whole)


def _with_context(record: Record, to: Sink) -> Record:
    update: dict[str, Any] = dict(trace_fields()) if record.trace_id is None else {}
    here = bound()
    if here.context and record.context is None:
        update["context"] = Context.model_validate(dict(here.context))
    facts: Mapping[str, Any] = to.facts.at(record.time_unix_nano) if to.facts is not None else {}
    common = {**facts, **here.attributes}
    if common and record.kind != "metric":  # whose attributes are its dimensions
        own = record.attributes or {}
        room = max(0, ATTRIBUTES_MAX - len(own) - len(record.own_fields))
        more = [item for item in common.items() if item[0] not in own][:room]
        update["attributes"] = {**dict(more), **own}
    return record.model_copy(update=update) if update else record
