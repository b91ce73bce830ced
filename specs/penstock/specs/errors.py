"""Errors of the spec library; the subclass says who must act.

Nothing on the emitting path raises them at an application: they come from defining specs, from
decoding, from set-up and from the command line.
"""

from penstock.base import extras


class SpecError(Exception):
    """Root of the errors that this package raises."""


class RefusedRecordError(SpecError):
    """A record breaks its spec; its producer must act.

    Attributes:
        reason: Short and stable, fit for a counter's label; never contains the record's values.
        detail: Field and rule; never contains the record's values.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class BrokenRuleError(SpecError, ValueError):
    """A record breaks a rule between its fields; its producer must act.

    The text is a sentence that names fields and never holds the record's values: it is shown.
    """


class RefusedSpecError(SpecError):
    """A spec class is not well formed; its author must act."""


class UnknownSpecError(SpecError):
    """No spec of that name and version is known here.

    Attributes:
        schema_id: The requested schema id.
    """

    def __init__(self, schema_id: str, known: str = "") -> None:
        super().__init__(f"no spec {schema_id!r}" + (f"; known: {known}" if known else ""))
        self.schema_id = schema_id


class MissingExtraError(SpecError, extras.MissingExtraError):
    """A module of this package needs an extra that is not installed."""

    def __init__(self, module: str | None, extra: str = "app") -> None:
        extras.MissingExtraError.__init__(self, module, extra)
