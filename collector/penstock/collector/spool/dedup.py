"""The last batch taken of each sender, so that one sent again is not taken twice.

A sender counts its batches from 1 and sends what is unanswered again, in order, after it
reconnects. So a sequence at or below the last one is a repeat. A jump ahead means that the sender
itself gave a batch up; it says so in its own drop counters.
"""

from collections import OrderedDict

from penstock.collector.limits import SENDERS_MAX


class SenderTable:
    """The last sequence per sender, the most recent sender last."""

    def __init__(self, *, senders_max: int = SENDERS_MAX) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict()
        self._durable: dict[bytes, int] = {}
        self._senders_max = senders_max

    def is_repeat(self, sender: bytes, sequence: int) -> bool:
        return sequence <= self._last.get(sender, 0)

    def durable(self, sender: bytes) -> int:
        """Return the sequence of the last batch known to be durable; 0 when none is."""
        return self._durable.get(sender, 0)

    def record(self, sender: bytes, sequence: int) -> None:
        """A batch was taken."""
        self._last[sender] = max(sequence, self._last.get(sender, 0))
        self._last.move_to_end(sender)
        if len(self._last) > self._senders_max:
            gone, _ = self._last.popitem(last=False)
            self._durable.pop(gone, None)

    def kept(self, sender: bytes, sequence: int) -> None:
        """A batch that was taken is durable, and with it all that came before it."""
        if sender in self._last:
            self._durable[sender] = max(sequence, self._durable.get(sender, 0))

    def retract(self, sender: bytes, sequence: int) -> None:
        """The batch could not be made durable after all, nor any that came after it."""
        if self._last.get(sender, 0) >= sequence:
            self._last[sender] = sequence - 1

    def forget(self, sender: bytes) -> None:
        """It counts from 1 again."""
        self._last.pop(sender, None)
        self._durable.pop(sender, None)

    def snapshot(self) -> dict[str, int]:
        """Return what is durable, for the checkpoint.

        A batch that is only taken may be lost with the process, and must be no repeat after that.
        """
        durable = self._durable
        return {sender.hex(): durable[sender] for sender in self._last if sender in durable}

    def restore(self, snapshot: dict[str, int]) -> None:
        """Restore a snapshot from the checkpoint."""
        for sender, sequence in snapshot.items():
            self.record(bytes.fromhex(sender), sequence)
            self.kept(bytes.fromhex(sender), sequence)
