"""The reader, a process of its own: `python -m tests.failover.reader`.

It follows the stream as an application does, and writes to a file when records came (monotonic
nanoseconds) and the offset after the last; two 64-bit integers each. A gap or a repetition ends it.
"""

import sys
from array import array
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from penstock.logd.client import FollowOptions, LogClient

FIELDS: Final = 2


def main() -> None:
    """Arguments: addresses of the nodes, stream, file for what came."""
    servers, stream, path = sys.argv[1:]
    reached = 0
    with LogClient(servers, timeout_s=5.0) as log, Path(path).open("wb", buffering=0) as seen:
        for header, rows in log.follow_batches(stream, 0, FollowOptions(wait_s=0.5)):
            assert header.next_offset == reached + rows.num_rows, (header, reached)
            reached = header.next_offset
            seen.write(array("q", (perf_counter_ns(), reached)).tobytes())


if __name__ == "__main__":
    main()
