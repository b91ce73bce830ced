"""`make bench`: acked publishing into logd, beside NATS JetStream in the same run.

Both are given the same messages by the same publisher through servers on this host, and both answer
each message. JetStream runs twice: with `sync_interval: always`, which promises what logd's default
promises (on disk before the ack), and with its own default, which does not.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nats

from tests.bench.raw_publisher import Figures, publish_acked
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server

SUBJECT = "bench.acked"
SIZE_BYTES = 256
WINDOWS = {1: 1_000, 64: 8_000, 1000: 20_000}
"""Messages in flight, and how many to send with that many in flight."""


@contextmanager
def logd(directory: Path) -> Iterator[str]:
    """A server with a logd that stores the subject, fsync policy `commit`."""
    streams = [{"name": "bench", "subject": "bench.>"}]
    with running_nats_server(directory / "nats") as url, Logd(directory / "logd", url, streams):
        yield url


@contextmanager
def jetstream(directory: Path, sync_interval: str) -> Iterator[str]:
    """A server whose JetStream stores the subject in files."""
    directory.mkdir()
    config = directory / "jetstream.conf"
    config.write_text(
        f'jetstream {{ store_dir: "{directory}/store", sync_interval: "{sync_interval}" }}\n'
    )
    with running_nats_server(directory / "nats", config=config) as url:
        asyncio.run(_add_stream(url))
        yield url


async def _add_stream(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="bench", subjects=["bench.>"])
    await client.close()


def measure(url: str) -> list[Figures]:
    """One run for each window."""
    runs = [
        publish_acked(url, SUBJECT, count=count, size_bytes=SIZE_BYTES, window=window)
        for window, count in WINDOWS.items()
    ]
    return [asyncio.run(run) for run in runs]


def main() -> None:
    """Measure all three and print each figure, and logd's ratio to the others."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        directory = Path(name)
        peers = {}
        with logd(directory / "logd") as url:
            ours = measure(url)
        for label, interval in (("always", "always"), ("default", "2m")):
            with jetstream(directory / label, interval) as url:
                peers[f"JetStream, sync {label}"] = measure(url)
    print(f"acked publishing, {SIZE_BYTES} B messages, one publisher")
    for index, window in enumerate(WINDOWS):
        print(f"\n  {window} in flight")
        _print_row("logd, fsync commit", ours[index], None)
        for label, figures in peers.items():
            _print_row(label, figures[index], ours[index].rate / figures[index].rate)


def _print_row(label: str, figures: Figures, ratio: float | None) -> None:
    assert figures.refused == 0, f"{label} refused {figures.refused}"
    compared = "" if ratio is None else f"   logd is {ratio:.2f} times as fast"
    print(
        f"    {label:<24} {figures.rate:>9,.0f}/s   p50 {figures.p50_ms:7.2f} ms"
        f"   p99 {figures.p99_ms:7.2f} ms{compared}"
    )


if __name__ == "__main__":
    main()
