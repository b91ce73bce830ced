"""The bytes of accepted messages that may wait for the disk, over all streams of a daemon."""


class ByteBudget:
    """Counts bytes held against a limit; used on the event loop only.

    Args:
        bytes_max: The limit. What is taken may pass it by one message at most.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0

    @property
    def room(self) -> int:
        """Bytes that may be taken now."""
        return max(self.bytes_max - self.held, 0)

    def take(self, size: int) -> None:
        """Hold more bytes."""
        self.held += size

    def release(self, size: int) -> None:
        """Hold fewer bytes."""
        self.held -= size
        assert self.held >= 0, self.held
