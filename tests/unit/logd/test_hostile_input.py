"""What a publisher sends is malicious until checked: never a crash, never memory beyond the limits.

pyarrow's memory is native and a claim that is too large fails softly there, so the batch check runs
in a process of its own and its pool is asked for its peak.
"""

import contextlib
import random
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError
from penstock.logd.format.acks import Nack
from penstock.logd.format.batch import Compression, Record, build_batch, decode_body, encode_body
from penstock.logd.format.body_claims import read_claims
from penstock.logd.format.envelope import COOKIE, BatchPayload, decode_envelope, encode_batch
from penstock.logd.format.frame import HEADER_SIZE, check_body, decode_header, encode_header
from penstock.logd.format.headers import parse_headers
from penstock.logd.format.rows import batch_records
from penstock.logd.intake.batch_check import describe_batch
from penstock.logd.intake.intake import Arrived, Intake
from penstock.logd.intake.turn import Append, Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import build_frames

CONFIG = StreamConfig(name="logs", subject="t.>", max_batch_decoded_bytes=1 << 20)
BOAST = 2**32 - 1
COMPRESSIONS: list[Compression | None] = [None, "zstd", "lz4"]


def sound_body(rng: random.Random) -> bytes:
    records = [
        Record(
            "t.a",
            rng.choice([None, b"", rng.randbytes(rng.randrange(200))]),
            rng.randrange(-(2**62), 2**62),
            rng.choice([None, b"key"]),
            rng.choice([(), (("name", b"value"), ("name", b""))]),
            rng.choice([None, "_INBOX.1"]),
        )
        for _ in range(rng.randrange(1, 20))
    ]
    return encode_body(build_batch(records), compression=rng.choice(COMPRESSIONS))


def mutate(body: bytes, rng: random.Random) -> bytes:
    """Change a few bytes or words, mostly in the metadata, to what tends to break readers."""
    data = bytearray(body)
    for _ in range(rng.randrange(1, 6)):
        end = min(len(data), rng.choice([64, 700, len(data)]))
        match rng.randrange(6):
            case 0:
                data[rng.randrange(end)] = rng.randrange(256)
            case 1:
                data[rng.randrange(end)] ^= 1 << rng.randrange(8)
            case 2:
                word = rng.choice([0, 1, -1, 2**31 - 1, -(2**31), 2**20])
                struct.pack_into("<i", data, rng.randrange(0, end - 3, 4) if end > 4 else 0, word)
            case 3:
                word = rng.choice([0, -1, 2**63 - 1, -(2**63), 2**40, 8])
                struct.pack_into("<q", data, rng.randrange(0, end - 7, 8) if end > 8 else 0, word)
            case 4:
                claim_more(data, rng)
            case _:
                cut = rng.randrange(0, len(data), 8)
                data = data[:cut] or data
    return bytes(data)


def claim_more(data: bytearray, rng: random.Random) -> None:
    """Let a small number in the body, perhaps a buffer's uncompressed length, be a large one."""
    begin = 8 + int.from_bytes(data[4:8], "little")
    places = [
        place
        for place in range(begin, len(data) - 7, 8)
        if 0 < int.from_bytes(data[place : place + 8], "little") < 1 << 16
    ]
    if places:
        struct.pack_into("<q", data, rng.choice(places), rng.choice([2**21, 2**28, 2**40]))


def hostile_payload(seed: int) -> BatchPayload:
    rng = random.Random(seed)
    body = mutate(sound_body(rng), rng)
    rows = decode_rows(body) if rng.random() < 0.7 else rng.randrange(1, 2**32)
    return BatchPayload(
        schema_version=1,
        record_count=max(rows, 1),
        producer_id=b"p" * 16,
        previous_sequence=0,
        sequence=1,
        body=body,
    )


def decode_rows(body: bytes) -> int:
    """What the body says of its rows, so that the check goes on to what lies behind."""
    try:
        return min(max(read_claims(body).rows, 1), 2**32 - 1)
    except CorruptError:
        return 1


def check_seeds(first: int, last: int) -> int:
    """Check hostile batches; how many were taken. What is taken must be readable as it says."""
    taken = 0
    for seed in range(first, last):
        payload = hostile_payload(seed)
        try:
            header = describe_batch(payload, "t.a", CONFIG)
        except CorruptError:
            continue
        batch = decode_body(payload.body)
        assert batch.num_rows == header.record_count == header.last_offset_delta + 1, seed
        assert len(list(batch_records(header, batch))) == batch.num_rows
        taken += 1
    return taken


def test_a_mutated_batch_is_refused_or_sound_within_bounded_memory() -> None:
    script = (
        "import sys\n"
        "import pyarrow as pa\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from tests.unit.logd import test_hostile_input as hostile\n"
        "print(hostile.check_seeds(0, 2000), pa.default_memory_pool().max_memory())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    taken, peak = map(int, run.stdout.split())
    assert taken > 30, "mutations that change nothing that matters are taken"
    assert peak < 4 * CONFIG.max_batch_decoded_bytes


def _bounded(call: Callable[[], object], limit: int) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(CorruptError):
            call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
@example(COOKIE + b"\x00\xff\x01\x40" + bytes(60))
@example(COOKIE + b"\x00\x0c\x01\x40" + bytes(60))
def test_an_envelope_costs_what_it_is_long(data: bytes) -> None:
    _bounded(lambda: decode_envelope(COOKIE + data), 4 * len(data) + 20_000)


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_a_frame_header_is_read_or_refused(data: bytes) -> None:
    _bounded(lambda: decode_header(data), 20_000)


def test_every_flipped_bit_of_a_frame_is_found() -> None:
    messages = [Message(b"t.a", b"", b"", b"payload")]
    intake = Intake(CONFIG, next_offset=0, epoch=1, streams_for=lambda _: ())
    (append,) = intake.handle(Arrived(messages, 1 << 20), 1)
    assert isinstance(append, Append)
    ((header, body),) = build_frames(append.items, epoch=1)
    frame = encode_header(header) + body
    for bit in range(len(frame) * 8):
        bad = bytearray(frame)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            check_body(decode_header(bytes(bad)), bytes(bad[HEADER_SIZE:]))


LINES = st.sampled_from(
    [b"A: b", b"A:", b"Nats-Msg-Id: x", b"no colon", b" : ", b"\r", b"a:\r\rb", b"Penstock-Key: "]
) | st.binary(max_size=20)
BLOCKS = st.lists(LINES, max_size=12).map(
    lambda lines: b"\r\n".join([b"NATS/1.0", *lines, b"", b""])
) | st.binary(max_size=100)


@settings(max_examples=200, deadline=None)
@given(BLOCKS)
def test_a_header_block_costs_what_it_is_long(block: bytes) -> None:
    _bounded(lambda: parse_headers(block, 256), 200 * len(block) + 20_000)


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0\r\n" + b"a:" + b" " * 60_000 + b"\r\nbad\r\n\r\n",
        b"NATS/1.0\r\n" + b"a" * 60_000 + b"\r\n\r\n",
        b"NATS/1.0\r\n" + b"a: b\r\n" * 10_000 + b"bad\r\n\r\n",
        b"NATS/1.0\r\n" + b"a:" + b"\r" * 60_000 + b"\r\n\r\nx",
    ],
    ids=["spaces", "name", "lines", "returns"],
)
def test_no_header_block_takes_more_than_one_look(block: bytes) -> None:
    """With a pattern that tries again, the first takes minutes, and the timeout ends it."""
    with pytest.raises(CorruptError):
        parse_headers(block, 1 << 20)


MESSAGES = st.builds(
    Message,
    st.sampled_from([b"t.a", b"t.\xff", b""]),
    st.sampled_from([b"", b"r"]),
    st.just(b"") | BLOCKS,
    st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: COOKIE + tail),
)


def hostile_messages() -> Iterator[Message]:
    for seed in range(40):
        yield Message(b"t.a", b"r", b"", encode_batch(hostile_payload(seed)))


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES, max_size=8))
@example([*hostile_messages()])
def test_every_message_is_stored_repeated_or_refused_and_can_be_built(given: list[Message]) -> None:
    intake = Intake(CONFIG, next_offset=0, epoch=1, streams_for=lambda _: ("other",))
    items = [
        item
        for effect in intake.handle(Arrived(given, 1 << 30), 1)
        if isinstance(effect, Append)
        for item in effect.items
    ]
    counts = intake.counts
    assert counts.received == counts.stored + counts.duplicates + counts.refused.total()
    frames = list(build_frames(items, epoch=1))
    assert sum(header.record_count for header, _ in frames) == intake.next_offset
    for header, body in frames:
        check_body(header, body)
        decode_body(body)


def test_a_batch_that_is_not_stored_counts_no_more_than_one_could_hold() -> None:
    config = StreamConfig(name="logs", subject="t.>", max_batch_rows=100)
    intake = Intake(config, next_offset=0, epoch=1, streams_for=lambda _: ())
    body = encode_body(build_batch([Record("t.a", b"x", 1)]))
    for previous, sequence, records in (
        (0, 1, 1),
        (0, 1, 2**32 - 1),
        (1, 2, 2**32 - 1),
        (7, 8, 2**31),
    ):
        batch = BatchPayload(
            schema_version=1,
            record_count=records,
            producer_id=b"p" * 16,
            previous_sequence=previous,
            sequence=sequence,
            body=body,
        )
        intake.handle(Arrived([Message(b"t.a", b"r", b"", encode_batch(batch))], 1 << 20), 1)
    counts = intake.counts
    assert (counts.received, counts.stored, counts.duplicates) == (301, 1, 100)
    assert counts.refused == {Nack.BAD_BATCH: 100, Nack.SEQUENCE_GAP: 100}
