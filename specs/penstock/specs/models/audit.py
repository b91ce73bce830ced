"""Audit records: who did what to what, and did it succeed."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from penstock.specs import ids
from penstock.specs.emit.process_sink import emit_here
from penstock.specs.models.envelope import CONFIG, Record
from penstock.specs.models.event import EventName
from penstock.specs.models.scalars import Count, RecordId, Text
from penstock.specs.redact.sensitivity import Sensitive

Identifier = Annotated[str, Field(min_length=1, max_length=255)]
ChangedFields = Annotated[list[Identifier] | None, Field(max_length=128)]


class Actor(BaseModel):
    """The actor. Its fields are never redacted: without them a record is no audit record."""

    model_config = CONFIG

    type: Identifier
    id: Identifier
    address: Annotated[str | None, Field(max_length=64), Sensitive("pii", "keep")] = None
    session: Annotated[str | None, Field(max_length=64), Sensitive("pseudonym", "keep")] = None


class Target(BaseModel):
    """The object of the action."""

    model_config = CONFIG

    type: Identifier
    id: Identifier
    owner: Annotated[str | None, Field(max_length=255)] = None


class Audit(Record, spec="audit/1.0"):
    """One audit record. `changed_fields` holds names, never values.

    `chain_seq` and `prev_hash` (SHA-256 of the previous record's line) make gaps and edits visible.
    """

    kind: Literal["audit"] = "audit"
    record_id: RecordId = Field(default_factory=ids.record_id)
    event_name: Annotated[EventName, Field(validate_default=True)] = ""
    subject: Annotated[str | None, Field(max_length=255)] = None
    actor: Actor
    action: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]{0,63}$")]
    target: Target
    outcome: Literal["success", "failure", "unknown"]
    reason: Text | None = None
    auth_method: Annotated[str | None, Field(alias="auth.method", max_length=64)] = None
    changed_fields: ChangedFields = None
    chain_seq: Count | None = None
    prev_hash: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None

    def emit(self) -> bool:
        """Emit through the process's emitter; False when it was dropped, also without `setup`."""
        return emit_here(self)
