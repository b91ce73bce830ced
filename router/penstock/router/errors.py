"""Errors of the router. The class says who must act."""

from typing import Final


class RouterError(Exception):
    """Root of everything the router raises itself."""


class BadOptionError(RouterError):
    """An option of the data source is not what it must be; the caller must change it."""


class DataLossError(RouterError):
    """Records that were to be read are gone; an operator must decide.

    Raised instead of skipping them. The option `failOnDataLoss` turns it off.

    Attributes:
        next_offset: Offset at which reading can go on; None: nowhere in the wanted range.
    """

    def __init__(self, message: str, *, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


ACCEPTING: Final = "failOnDataLoss=false, in a job `source: {fail_on_data_loss: false}`, goes on"
"""What to do where a loss is accepted; a message says behind it where reading goes on."""


class UnknownPartitionError(DataLossError):
    """A stream that exists has no such partition."""


class DamagedError(DataLossError):
    """Records are damaged where they were asked for; in a cluster, others may have them sound."""


class LargerThanPlannedError(RouterError):
    """A task's records have far more bytes than the batch was planned with; it is planned again.

    Its name passes through Spark's layers of errors: the sink's query knows it by that.
    """


class RecordTooLargeError(RouterError):
    """A record, or a batch that was begun, is larger than what Spark's heap has room for."""


class RepeatedRowError(RouterError):
    """Spark has made several rows of one record, which would be delivered as often."""


class LogRefusedError(RouterError):
    """logd refuses to give records, for another reason than that they are gone."""


class LogUnavailableError(RouterError):
    """logd could not be reached for longer than the reader was told to wait."""


class UnavailableError(RouterError):
    """A destination cannot do now what must come before a batch; the batch comes again."""


class StoppedError(RouterError):
    """The job, or the replay, is stopping; the batch in hand was given up and will come again."""
