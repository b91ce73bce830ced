"""Errors of the collector; errors that end the process are `penstock.service.ServiceError`."""


class CollectorError(Exception):
    """Root of the collector's own errors."""


class RemoteProtocolError(CollectorError):
    """A sender did not keep to its protocol.

    Attributes:
        sequence: The faulty batch, if known; the sender can then be answered.
    """

    def __init__(self, message: str, *, sequence: int | None = None) -> None:
        self.sequence = sequence
        super().__init__(message)


class UndecodableError(CollectorError):
    """A unit, or a record of it, cannot be read; it goes to quarantine with this reason."""


class SpoolFullError(CollectorError):
    """The spool has no room for this.

    Attributes:
        for_ever: It would not fit into an empty spool either.
    """

    def __init__(self, message: str, *, for_ever: bool = False) -> None:
        self.for_ever = for_ever
        super().__init__(message)


class SpoolFailedError(CollectorError):
    """The spool could not write or sync; nothing of the unit was acknowledged."""
