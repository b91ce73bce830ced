"""What the router raises. The class says who must act."""


class RouterError(Exception):
    """Root of everything the router raises itself."""


class BadOptionError(RouterError):
    """An option of the data source is not what it must be; the caller must change it."""


class DataLossError(RouterError):
    """Records that were to be read are gone; an operator must decide.

    Raised instead of skipping them. The option `failOnDataLoss` turns it off.

    Attributes:
        next_offset: Where reading can go on; None: nowhere in what was to be read.
    """

    def __init__(self, message: str, *, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class DamagedError(DataLossError):
    """Records are damaged where they were asked for; in a cluster, others may have them sound."""


class LogRefusedError(RouterError):
    """logd refuses to give records, for another reason than that they are gone."""


class LogUnavailableError(RouterError):
    """logd could not be reached for longer than the reader was told to wait."""


class UnavailableError(RouterError):
    """A destination cannot do now what must come before a batch; the batch comes again."""


class StoppedError(RouterError):
    """The job, or the replay, is stopping; the batch in hand was given up and will come again."""
