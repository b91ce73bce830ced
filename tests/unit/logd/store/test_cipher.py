"""Encrypted logs: what is on disk tells nothing, and nothing that was changed is believed."""

import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.logd.encryption.cipher import CIPHERS_MAX, Encryptor, SegmentCipher, decrypted
from penstock.logd.errors import CorruptError, CorruptFrameError
from penstock.logd.format.frame import (
    ENCRYPTION_BYTES,
    HEADER_SIZE,
    FrameHeader,
    crc32c,
    decode_header,
    encode_header,
    parse_frames,
)
from penstock.logd.intake.intake import Intake
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.segment import segment_path
from tests.sim.disk import MemoryDisk
from tests.support.frames import make_frame, make_frames

Frame = tuple[FrameHeader, bytes]
ROOT = Path("/log")
CONFIG = LogConfig(max_segment_bytes=1500, index_interval_bytes=600)
SECRET = b"a secret that no disk may tell " * 3
CIPHER = SegmentCipher({7: bytes(range(32))}, b"00ff/0")
OTHER_LOG = SegmentCipher({7: bytes(range(32))}, b"00ff/1")
OTHER_KEY = SegmentCipher({7: bytes(32)}, b"00ff/0")


def open_log(disk: MemoryDisk, cipher: SegmentCipher | None = CIPHER) -> CommitLog:
    return CommitLog.open(ROOT, CONFIG, disk=disk, cipher=cipher)


def write_log(disk: MemoryDisk, count: int = 12) -> list[Frame]:
    """Several segments; the frames that were given to the log."""
    disk.make_directory(ROOT)
    log, frames = open_log(disk), make_frames(0, [SECRET + b"%d" % n for n in range(count)])
    for frame in frames:
        log.append([frame])
        log.sync()
    log.close()
    return frames


def position_of(disk: MemoryDisk, segment: int, number: int) -> int:
    """Where a segment's frame begins."""
    file, position = disk.open(segment_path(ROOT, segment)), 0
    for _ in range(number):
        header = decode_header(file.read(position, HEADER_SIZE), stored=True)
        position += header.frame_length
    return position


def forge(disk: MemoryDisk, segment: int, number: int, at: int) -> None:
    """Change a byte of a frame, as one who knows how its CRCs are made."""
    inode = disk.inode(segment_path(ROOT, segment))
    position = position_of(disk, segment, number)
    length = decode_header(bytes(inode.seen[position:]), stored=True).frame_length
    frame = bytearray(inode.seen[position : position + length])
    frame[at if at >= 0 else length + at] ^= 1
    struct.pack_into("<I", frame, 12, crc32c(bytes(frame[HEADER_SIZE:])))
    head = bytes(frame[:8]) + bytes(frame[12:HEADER_SIZE])
    struct.pack_into("<I", frame, 8, crc32c(head))
    inode.seen[position : position + length] = frame
    inode.durable[:] = inode.seen


@settings(max_examples=50)
@given(st.binary(max_size=300), st.integers(0, 1 << 40), st.integers(0, 1 << 20))
def test_a_frame_comes_back_as_it_was(body: bytes, offset: int, epoch: int) -> None:
    header, padded = make_frame(offset, body + b"x", epoch=epoch, timestamp_ns=-5)
    encrypted, outer = Encryptor(CIPHER, 3).encrypt(header, padded)
    assert len(outer) == encrypted.body_length == len(padded) + ENCRYPTION_BYTES
    assert encrypted.body_length % 8 == 0
    stored = decode_header(encode_header(encrypted), stored=True)
    assert stored.encrypted
    assert CIPHER.decrypt(stored, outer, 3) == (header, padded)
    with pytest.raises(CorruptError, match="flags"):
        decode_header(encode_header(encrypted))


def test_what_lies_on_disk_shows_nothing_of_the_records() -> None:
    disk = MemoryDisk()
    frames = write_log(disk)
    log = open_log(disk)
    intake = Intake(StreamConfig(name="s", subject="t", compact=True), next_offset=4, epoch=1,
                    streams_for=lambda _: ())  # fmt: skip
    intake.dedup.message_ids.record(SECRET, 3, 1)
    ProducerSnapshot.of(intake).save(ROOT, disk=disk, cipher=log.cipher)
    for name in disk.list_directory(ROOT):
        content = bytes(disk.inode(ROOT / name).seen)
        assert SECRET[:12] not in content, name
        assert SECRET.hex()[:24].encode() not in content, name
    memory = ProducerSnapshot.load(ROOT, disk=disk, cipher=log.cipher)
    assert memory is not None
    assert memory.ids[0] == [SECRET]
    assert list(log.frames()) == frames
    assert log.segment_count > 2
    assert log.offset_for_timestamp(7) == 7


def test_reads_of_every_kind_give_the_frames_as_they_were_written() -> None:
    disk = MemoryDisk()
    frames = write_log(disk)
    log = open_log(disk)
    for offset in range(12):
        for upto in (offset + 1, 12):
            assert list(log.frames(offset, upto=upto)) == frames[offset:upto]
            assert log.read_frames(offset, bytes_max=1 << 20, upto=upto) == frames[offset:upto]
        assert log.read_frames(offset, bytes_max=1, upto=12) == [frames[offset]]
    parts = log.read(0, bytes_max=1 << 20, upto=12)
    with pytest.raises(CorruptError, match="flags"):
        parse_frames(parts[0].file.read(parts[0].position, parts[0].length))


@pytest.mark.parametrize("at", [5, 24, 48, 64, HEADER_SIZE, HEADER_SIZE + 30, -77, -72, -57, -56,
                                -17, -16, -8, -1], ids=str)  # fmt: skip
def test_a_frame_that_was_changed_by_one_who_knows_crcs_is_damage(at: int) -> None:
    disk = MemoryDisk()
    frames = write_log(disk)
    forge(disk, 0, 2, at)
    log = open_log(disk)
    with pytest.raises(CorruptFrameError) as damage:
        list(log.frames(2))
    assert (damage.value.offset, damage.value.next_offset) == (2, 3)
    assert list(log.frames(3)) == frames[3:]
    assert log.read_frames(0, bytes_max=1 << 20, upto=12) == frames[:2]
    assert log.damaged() == [(2, 3)]


def test_a_frame_whose_seal_was_broken_is_filled_in_from_a_replica() -> None:
    disk = MemoryDisk()
    frames = write_log(disk)
    forge(disk, 0, 1, HEADER_SIZE)
    log = open_log(disk)
    with pytest.raises(CorruptFrameError):
        list(log.frames(1))
    assert log.patch(1, 2, [frames[1]])
    assert list(log.frames()) == frames
    assert log.damaged() == []
    assert list(open_log(disk).frames()) == frames


def test_frames_of_other_places_logs_and_keys_are_not_believed() -> None:
    header, body = make_frame(5, SECRET)
    encrypted = Encryptor(CIPHER, 0).encrypt(header, body)
    elsewhere = (
        (CIPHER, encrypted, 8),
        (OTHER_LOG, encrypted, 0),
        (OTHER_KEY, encrypted, 0),
        (CIPHER, (encrypted[0].at(base_offset=6, leader_epoch=1), encrypted[1]), 0),
        (CIPHER, (encrypted[0].at(base_offset=5, leader_epoch=2), encrypted[1]), 0),
        (CIPHER, (header, body), 0),
        (CIPHER, (encrypted[0], encrypted[1][-ENCRYPTION_BYTES:]), 0),
        (None, encrypted, 0),
        (SegmentCipher({8: bytes(32)}, b"00ff/0"), encrypted, 0),
    )
    for cipher, frame, segment in elsewhere:
        with pytest.raises(CorruptError):
            decrypted(cipher, *frame, segment)
    assert decrypted(CIPHER, *encrypted, 0) == (header, body)


def test_a_plain_frame_in_an_encrypted_log_is_damage() -> None:
    disk = MemoryDisk()
    frames = write_log(disk, 3)
    log = open_log(disk, None)
    log.append(make_frames(3, [b"put there"]))
    log.close()
    again = open_log(disk)
    assert list(again.frames(upto=3)) == frames
    with pytest.raises(CorruptFrameError, match="not encrypted"):
        list(again.frames(3))


def test_more_data_keys_than_are_kept_are_all_read() -> None:
    disk = MemoryDisk()
    disk.make_directory(ROOT)
    count = CIPHERS_MAX + 20
    for number in range(count):
        log = open_log(disk)
        log.append(make_frames(number, [b"%d" % number]))
        log.sync()
    log = open_log(disk)
    for _ in range(2):
        assert [body.rstrip(b"\0") for _, body in log.frames()] == [
            b"%d" % number for number in range(count)
        ]
    assert log.cipher is not None
    kept = log.cipher._aeads  # noqa: SLF001 - a bound on memory, which nobody can see from outside
    assert len(kept) == CIPHERS_MAX


@pytest.mark.parametrize("change", ["plain", "another log's", "flipped", "short", "missing"])
def test_a_memory_that_is_not_this_logs_is_not_believed(change: str) -> None:
    disk = MemoryDisk()
    disk.make_directory(ROOT)
    intake = Intake(StreamConfig(name="s", subject="t"), next_offset=0, epoch=1,
                    streams_for=lambda _: ())  # fmt: skip
    cipher = {"plain": None, "another log's": OTHER_LOG}.get(change, CIPHER)
    ProducerSnapshot.of(intake).save(ROOT, disk=disk, cipher=cipher)
    inode = disk.inode(ROOT / "producers")
    if change == "flipped":
        inode.seen[Random(1).randrange(len(inode.seen))] ^= 4
    elif change == "short":
        del inode.seen[40:]
    elif change == "missing":
        disk.unlink(ROOT / "producers")
        assert ProducerSnapshot.load(ROOT, disk=disk, cipher=CIPHER) is None
        return
    with pytest.raises(CorruptError):
        ProducerSnapshot.load(ROOT, disk=disk, cipher=CIPHER)
