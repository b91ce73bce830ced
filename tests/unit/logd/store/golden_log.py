"""The log whose bytes are kept under tests/golden/logd: format version 1 as it was first written.

Run as a module to write the files of a new format version; files of old versions are never
written again.
"""

import sys
from pathlib import Path
from typing import Final

from penstock.logd.storage import CommitLog, LogConfig
from tests.support.frames import make_frame

DIRECTORY: Final = Path(__file__).parents[3] / "golden" / "logd" / "log-1"
CONFIG: Final = LogConfig(max_segment_bytes=1 << 20, index_interval_bytes=300)
RECORDS: Final = 9


def write_golden_log(directory: Path) -> None:
    """Two segments: one sealed, with every header field used, and one closed."""
    log = CommitLog.open(directory, CONFIG, now_ns=lambda: 0)
    for number, records in enumerate((1, 2, 3)):
        body = bytes(range(64, 64 + 8 * (number + 1)))
        frame = make_frame(
            log.end_offset,
            body,
            records=records,
            epoch=7,
            timestamp_ns=1_700_000_000_000_000_000 + number,
            max_timestamp_ns=1_700_000_000_000_000_000 + 10 * number,
            producer_id=bytes(range(16)) if number == 1 else bytes(16),
            producer_sequence=41 if number == 1 else 0,
        )
        log.append([frame])
    log.append([make_frame(6, b"x" * 200, epoch=8, timestamp_ns=-1), make_frame(7, b"y", epoch=8)])
    log.roll()
    log.append([make_frame(8, b"last", epoch=9, timestamp_ns=5)])
    log.close()


if __name__ == "__main__":
    write_golden_log(Path(sys.argv[1]))
