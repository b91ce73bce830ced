"""A logd's data directory without a logd, made by the real store."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.metadata.streams import Metadata, StreamConfig
from penstock.logd.storage import Checkpoint, CommitLog, EpochFile, LogConfig

ROWS = 3
"""Records of each frame."""


def record(offset: int) -> Record:
    """The record that `write_log` puts at an offset."""
    value = None if offset % 7 == 6 else b"value %03d" % offset
    return Record(f"t.{offset % 3}", value, 1_000 + offset, b"k", (("H", b"v"),))


def write_log(directory: Path, frames: int, *, close: bool = True, first: int = 0) -> CommitLog:
    """A log of frames of three records, synced one by one, five frames to a segment."""
    log = CommitLog.open(directory, LogConfig(max_segment_bytes=5_000))
    EpochFile(directory / "epochs").begin(first + 1, log.end_offset)
    for _ in range(frames):
        base = log.end_offset
        batch = build_batch([record(base + number) for number in range(ROWS)])
        body = encode_body(batch)
        header = describe_body(body, batch).at(base_offset=base, leader_epoch=first + 1)
        log.append([(header, body)])
        log.sync()
    if close:
        log.close()
    Checkpoint(directory / "producers").save({"offset": log.end_offset, "producers": []})
    return log


@dataclass(frozen=True)
class Store:
    """A data directory with the streams `logs` and `audit`."""

    data_dir: Path

    def log_dir(self, stream: str) -> Path:
        """Where the log of partition 0 lies."""
        return self.data_dir / "streams" / f"{stream}-00ff" / "0"


def write_store(data_dir: Path, *, frames: int = 10, close: bool = True) -> Store:
    """A data directory as a logd leaves it."""
    store, metadata = Store(data_dir), Metadata()
    for name in ("logs", "audit"):
        metadata.create(StreamConfig(name=name, subject=f"t.{name}"), "00ff")
        write_log(store.log_dir(name), frames, close=close)
    (data_dir / "trash").mkdir()
    (data_dir / "lock").write_text("1\n")
    Checkpoint(data_dir / "metadata").save(metadata.snapshot())
    return store


def state_of(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Every file and directory: mode, time of change, and bytes."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(data).hexdigest()
        found[str(path)] = (status.st_mode, status.st_mtime_ns, digest)
    return found
