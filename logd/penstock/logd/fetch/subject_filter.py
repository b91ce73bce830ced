"""Frames with the records of some subjects only: the copy path of a fetch.

A filtered frame keeps its range, so records keep their offsets; like a compacted one it says that
records are missing from it on purpose. A frame in which nothing matches is left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.batch import decode_body, encode_body
from penstock.logd.core.subjects import matches
from penstock.logd.errors import CorruptError, UnavailableError
from penstock.logd.frame import FrameHeader, crc32c, encode_header
from penstock.logd.rows import split_frames
from penstock.logd.store import CorruptFrameError, FileRange
from penstock.logd.store.reader import LogReader

Body = bytes | memoryview


def filter_ranges(
    ranges: Iterable[FileRange], subject: str, *, log: LogReader, bytes_max: int
) -> tuple[bytes, int]:
    """Read frames and keep the records whose subjects a filter matches.

    One frame is decoded at a time, so that memory is bounded by what one may decode to.

    Args:
        ranges: What to read; not empty.
        subject: The filter.
        log: That they are of.
        bytes_max: Of what is kept; what goes beyond it is left for the next fetch, after one frame.

    Returns:
        Whole frames, and the offset after the last one looked at.

    Raises:
        CorruptFrameError: The first frame is damaged; what comes before damage is kept.
        UnavailableError: The log was cut meanwhile, and has none of them.
    """
    parts: list[bytes] = []
    size, next_offset = 0, 0
    for header, body in _sound_frames(ranges, log):
        kept = _filter_frame(header, body, subject)
        length = sum(len(part) for part in kept)
        if size and size + length > bytes_max:
            break
        parts.extend(kept)
        size += length
        next_offset = header.next_offset
    if not next_offset:
        raise UnavailableError("the records were taken back while they were read")
    return b"".join(parts), next_offset


def _sound_frames(
    ranges: Iterable[FileRange], log: LogReader
) -> Iterator[tuple[FrameHeader, Body]]:
    """As `LogReader.read_frames`, one at a time: damage ends them, and is told if it is first."""
    none = True
    try:
        for frame in _frames(ranges, log):
            yield frame
            none = False
    except CorruptFrameError:
        if none:
            raise


def _frames(ranges: Iterable[FileRange], log: LogReader) -> Iterator[tuple[FrameHeader, Body]]:
    for part in ranges:
        offset = part.base_offset
        if log.vault is not None:
            yield from log.frames(offset, upto=part.next_offset)
            continue
        data = memoryview(part.file.read(part.position, part.length))
        try:
            for frame in split_frames(data):
                yield frame
                offset = frame[0].next_offset
        except CorruptError:  # rotted since it was checked first; the log says what is damaged
            yield from log.frames(offset, upto=part.next_offset)


def _filter_frame(header: FrameHeader, body: Body, subject: str) -> tuple[bytes, ...]:
    batch = decode_body(body, where=f"offset {header.base_offset}")
    kept = batch.filter(_matching(batch.column("subject"), subject))
    if kept.num_rows == 0:
        return ()
    if kept.num_rows == batch.num_rows:
        return (encode_header(header), bytes(body))
    smaller = encode_body(kept)
    changed = replace(
        header,
        record_count=kept.num_rows,
        body_length=len(smaller),
        body_crc=crc32c(smaller),
        compacted=True,
    )
    return (encode_header(changed), smaller)


def _matching(subjects: pa.Array, wanted: str) -> pa.Array:
    matching = [name for name in pc.unique(subjects).to_pylist() if matches(wanted, name)]
    return pc.is_in(subjects, value_set=pa.array(matching, pa.string()))
