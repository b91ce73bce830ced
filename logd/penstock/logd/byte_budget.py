"""The bytes of accepted messages that may wait for the disk: of a stream, and of all of them."""


class ByteBudget:
    """Counts bytes held against a limit; used on the event loop only.

    Args:
        bytes_max: The limit. What is taken may pass it by one message at most.
        parent: The budget that this one is a share of; what is held here is held there, too.
    """

    def __init__(self, bytes_max: int, parent: "ByteBudget | None" = None) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self._parent = parent

    @property
    def room(self) -> int:
        """Bytes that may be taken now."""
        room = max(self.bytes_max - self.held, 0)
        return room if self._parent is None else min(room, self._parent.room)

    def take(self, size: int) -> None:
        """Hold more bytes."""
        self.held += size
        if self._parent is not None:
            self._parent.take(size)

    def release(self, size: int) -> None:
        """Hold fewer bytes."""
        self.held -= size
        assert self.held >= 0, self.held
        if self._parent is not None:
            self._parent.release(size)

    def share(self, bytes_max: int | None) -> "ByteBudget":
        """A stream's budget: what it is given, or half of this one, so that others have room."""
        wanted = self.bytes_max // 2 if bytes_max is None else bytes_max
        return ByteBudget(min(wanted, self.bytes_max), self)
