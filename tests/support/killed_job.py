"""A job whose processes are killed while its tasks write, and which then comes to its end."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.support.router import job_of_logs, log_line
from tests.support.waiting import wait_until

RECORDS: Final = 6000
"""Records in the log, numbered from 0; batches have 300 of them."""

_SHARES: Final = (10, 5, 3)


def run_with_kills(
    directory: Path, nats_url: str, sink: dict[str, Any], port: int, arrived: Callable[[], int]
) -> None:
    """Run a job over `RECORDS` records until it has caught up.

    Its Python workers are killed three times while they are connected to the destination, and then
    all its processes.

    Args:
        directory: For everything that log and job write.
        nats_url: The NATS server's.
        sink: The sink's settings.
        port: Port of the destination, which runs in this process.
        arrived: Returns how many records the destination has.
    """

    def has(count: int) -> bool:
        return arrived() >= count

    lines = [log_line(number) for number in range(RECORDS)]
    sinks = {"it": sink | {"batch": {"max_records": 50}}}
    spark, trigger = {"master": "local[2,4]"}, {"interval_s": 0.1, "max_records": 300}
    with job_of_logs(directory, nats_url, lines, sinks, spark=spark, trigger=trigger) as job:
        job.daemon.start(within_s=180)
        for share in _SHARES:
            wait_until(partial(has, RECORDS // share), within_s=240, what="some records")
            assert job.kill_clients(port)
        job.daemon.kill()
        assert arrived() < RECORDS
        job.daemon.start("--until-caught-up", within_s=180)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
