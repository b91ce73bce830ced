"""What the router raises. The class says who must act."""


class RouterError(Exception):
    """Root of everything the router raises itself."""


class BadOptionError(RouterError):
    """An option of the data source is not what it must be; the caller must change it."""


class DataLossError(RouterError):
    """Records that were to be read are gone; an operator must decide.

    Raised instead of skipping them. The option `failOnDataLoss` turns it off.

    Attributes:
        replaced: Whether others are in their place, so that reading can go on where it stands.
    """

    def __init__(self, message: str, *, replaced: bool = False) -> None:
        super().__init__(message)
        self.replaced = replaced


class LogUnavailableError(RouterError):
    """logd could not be reached for longer than the reader was told to wait."""


class UnavailableError(RouterError):
    """A destination cannot do now what must come before a batch; the batch comes again."""


class StoppedError(RouterError):
    """The job, or the replay, is stopping; the batch in hand was given up and will come again."""
