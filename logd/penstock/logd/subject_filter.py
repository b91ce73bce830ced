"""Frames with the records of some subjects only: the copy path of a fetch.

A filtered frame keeps its range, so records keep their offsets; like a compacted one it says that
records are missing from it on purpose. A frame in which nothing matches is left out.
"""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.batch import decode_body, encode_body
from penstock.logd.core.subjects import matches
from penstock.logd.frame import FrameHeader, crc32c, encode_header
from penstock.logd.rows import split_frames
from penstock.logd.store import FileRange


def filter_ranges(ranges: Iterable[FileRange], subject: str) -> bytes:
    """Read frames and keep the records whose subjects a filter matches.

    Raises:
        CorruptError: A frame is damaged.
    """
    parts: list[bytes] = []
    for part in ranges:
        data = memoryview(part.file.read(part.position, part.length))
        for header, body in split_frames(data, where=f"offset {part.base_offset}"):
            parts.extend(_filter_frame(header, body, subject))
    return b"".join(parts)


def _filter_frame(header: FrameHeader, body: memoryview, subject: str) -> Iterable[bytes]:
    batch = decode_body(body, where=f"offset {header.base_offset}")
    kept = batch.filter(_matching(batch.column("subject"), subject))
    if kept.num_rows == batch.num_rows:
        return (encode_header(header), bytes(body))
    if kept.num_rows == 0:
        return ()
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
