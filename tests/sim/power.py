"""The power of a simulated machine: it goes in the middle of an operation of the disk."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from penstock.logd.errors import LogFailedError
from tests.sim.disk import MemoryDisk


class PowerLossError(BaseException):
    """The machine stops in the middle of an operation."""


class Power:
    """The faults of one disk.

    Args:
        disk: It asks here before each operation.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._left = 0

    def goes_after(self, operations: int) -> None:
        """The power goes in the last one of so many operations that change something."""
        self._left = operations

    def lasts_until_lost(
        self, random: Random, operations: int, work: Callable[[], None], counts: Counter[str]
    ) -> None:
        """Work until the power goes after so many operations, at the end at the latest.

        Args:
            random: What of the disk survives.
            operations: See `goes_after`.
            work: What is done meanwhile.
            counts: Of what ended it.
        """
        self.goes_after(operations)
        self._disk.fail = self.fails
        try:
            work()
        except PowerLossError:
            counts["power loss"] += 1
        except LogFailedError:
            counts["failed"] += 1
        self._left = 0
        self._disk.crash(random)

    def fails(self, operation: str, _path: Path) -> bool:
        """The fault hook: the power goes when its time has come; nothing else fails."""
        if self._left > 0 and operation not in ("read", "open"):
            self._left -= 1
            if self._left == 0:
                raise PowerLossError
        return False

    def break_once(self, broken: str, where: Callable[[Path], bool]) -> None:
        """An operation fails the next time, once, on the paths where it may."""
        once = [True]

        def fails(operation: str, path: Path) -> bool:
            self.fails(operation, path)
            return operation == broken and where(path) and bool(once) and once.pop()

        self._disk.fail = fails
