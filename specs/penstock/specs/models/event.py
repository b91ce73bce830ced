"""Events: something happened that has a name and typed facts."""

from typing import Annotated, Literal

from pydantic import Field

from penstock.specs import ids
from penstock.specs.emit.process_sink import emit_here
from penstock.specs.models.envelope import Record
from penstock.specs.models.scalars import RecordId

EventName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$", max_length=96)]


class Event(Record, spec="event/1.0"):
    """One event; a specialised spec's `event_name` is its own name.

    Teams subclass it: ``class OrderPlaced(Event, spec="shop.order_placed/1.0")``.
    """

    kind: Literal["event"] = "event"
    record_id: RecordId = Field(default_factory=ids.record_id)
    event_name: Annotated[EventName, Field(validate_default=True)] = ""
    subject: Annotated[str | None, Field(max_length=255)] = None

    def emit(self) -> bool:
        """Emit through the process's emitter; False when it was dropped, also without `setup`."""
        return emit_here(self)
