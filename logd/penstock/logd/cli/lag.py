"""How far behind consumers are."""

from typing import NamedTuple

from penstock.logd.client import LogClient

PartitionPlace = tuple[str, str, int]
"""Stream, incarnation and number of a partition."""


class Standing(NamedTuple):
    """What can be read of a partition: from `start` to before `end`."""

    start: int
    end: int

    def lag(self, offset: int | None) -> int:
        """Records that a consumer has before it; without a cursor, all there are."""
        return max(self.end - max(self.start, offset or 0), 0)


def standings(log: LogClient) -> dict[PartitionPlace, Standing]:
    """Every partition whose leader could be asked."""
    return {
        (info.name, info.incarnation, part.partition): Standing(
            part.start_offset, part.high_watermark + 1
        )
        for info in log.streams()
        for part in info.partitions
        if part.is_known
    }
