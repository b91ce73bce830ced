"""The key files of an encrypted log: made once, rewrapped, kept twice."""

from pathlib import Path
from random import Random

import pytest

from penstock.logd.encryption.cipher import Encryptor, SegmentCipher
from penstock.logd.encryption.key_file import (
    KEYS_MAX,
    InspectedKeys,
    masters_of,
    open_cipher,
    read_keys,
    rewrap,
)
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import crc32c
from penstock.logd.storage import CommitLog, LogConfig
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power, PowerLossError
from tests.support.frames import make_frames

ROOT = Path("/log")
BOUND = "00ff/0"
CONFIG = LogConfig()


class Masters:
    """Master keys in memory."""

    def __init__(self, active: str, **keys: int) -> None:
        self.active = active
        self._keys = {name: bytes([number]) * 32 for name, number in keys.items()}

    def key(self, name: str) -> bytes:
        if name not in self._keys:
            raise RefusedError("KEY_UNAVAILABLE", f"no {name}", key=name)
        return self._keys[name]


OLD = Masters("old", old=1)
BOTH = Masters("new", old=1, new=2)
NEW = Masters("new", new=2)


def made() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(ROOT)
    return disk


def append(disk: MemoryDisk, masters: Masters, body: bytes) -> None:
    """Open the log as logd does, append a record and close."""
    log = CommitLog.open(
        ROOT, CONFIG, disk=disk, cipher=open_cipher(ROOT, masters, BOUND, disk=disk)
    )
    log.append(make_frames(log.end_offset, [body]))
    log.close()


def bodies(disk: MemoryDisk, masters: Masters) -> list[bytes]:
    ring = read_keys(ROOT, masters, disk=disk)
    assert ring is not None
    log = CommitLog.open(ROOT, CONFIG, disk=disk, cipher=ring.cipher())
    return [body.rstrip(b"\0") for _, body in log.frames()]


def test_a_new_master_key_rewraps_and_begins_a_new_key_and_rewrites_no_segment() -> None:
    disk = made()
    append(disk, OLD, b"one")
    before = bytes(disk.inode(ROOT / f"{0:020}.log").seen)
    append(disk, BOTH, b"two")
    assert bytes(disk.inode(ROOT / f"{0:020}.log").seen).startswith(before)
    assert masters_of(ROOT, disk=disk) == ["new"]
    append(disk, NEW, b"three")
    assert bodies(disk, NEW) == [b"one", b"two", b"three"]
    ring = read_keys(ROOT, NEW, disk=disk)
    assert ring is not None
    assert (sorted(ring.keys), ring.revision, ring.whole) == ([1, 2], 2, True)
    with pytest.raises(RefusedError, match="no new") as refused:
        read_keys(ROOT, OLD, disk=disk)
    assert refused.value.code == "KEY_UNAVAILABLE"


def test_a_log_that_is_open_goes_on_under_another_master_key() -> None:
    disk = made()
    cipher = open_cipher(ROOT, OLD, BOUND, disk=disk)
    log = CommitLog.open(ROOT, CONFIG, disk=disk, cipher=cipher)
    log.append(make_frames(0, [b"one"]))
    with pytest.raises(RefusedError, match="no new"):
        rewrap(ROOT, Masters("new", old=1), cipher, disk=disk)
    log.append(make_frames(1, [b"two"]))
    rewrap(ROOT, BOTH, cipher, disk=disk)
    rewrap(ROOT, NEW, cipher, disk=disk)  # nothing is left to be done
    assert (cipher.newest, cipher.master) == (2, "new")
    log.append(make_frames(2, [b"three"]))
    assert [body.rstrip(b"\0") for _, body in log.frames()] == [b"one", b"two", b"three"]
    log.close()
    ring = read_keys(ROOT, NEW, disk=disk)
    assert ring is not None
    assert (sorted(ring.keys), ring.revision, ring.whole) == ([1, 2], 2, True)
    assert bodies(disk, NEW) == [b"one", b"two", b"three"]
    leaked = SegmentCipher(
        {1: ring.keys[1]}, BOUND.encode()
    )  # the old key reads nothing of what came then
    with pytest.raises(CorruptError, match="the log's key 2"):
        list(CommitLog.open(ROOT, CONFIG, disk=disk, cipher=leaked).frames())


def test_a_wrong_master_key_is_told_from_damage() -> None:
    disk = made()
    append(disk, OLD, b"one")
    with pytest.raises(RefusedError, match="not the one") as refused:
        open_cipher(ROOT, Masters("old", old=9), BOUND, disk=disk)
    assert (refused.value.code, refused.value.detail["key"]) == ("WRONG_KEY", "old")
    assert bodies(disk, OLD) == [b"one"]


def test_another_logs_keys_are_refused() -> None:
    disk = made()
    append(disk, OLD, b"one")
    with pytest.raises(CorruptError, match="not of 00ff/1"):
        open_cipher(ROOT, OLD, "00ff/1", disk=disk)
    for name in ("keys", "keys.copy"):  # though their files say so
        path = ROOT / name
        text = bytes(disk.inode(path).seen).split(b" ", 2)[2].replace(b"00ff/0", b"00ff/1")
        line = b"PNSC1 %08x %s\n" % (crc32c(text.rstrip(b"\n")), text.rstrip(b"\n"))
        disk.inode(path).seen[:] = line
    with pytest.raises(RefusedError) as refused:
        open_cipher(ROOT, OLD, "00ff/1", disk=disk)
    assert refused.value.code == "WRONG_KEY"


@pytest.mark.parametrize("name", ["keys", "keys.copy"])
@pytest.mark.parametrize("lost", [True, False])
def test_either_key_file_is_made_again_from_the_other(name: str, *, lost: bool) -> None:
    disk = made()
    append(disk, OLD, b"one")
    if lost:
        disk.unlink(ROOT / name)
    else:
        disk.inode(ROOT / name).seen[20] ^= 1
    append(disk, OLD, b"two")
    other = "keys.copy" if name == "keys" else "keys"
    disk.unlink(ROOT / other)
    assert bodies(disk, OLD) == [b"one", b"two"]


def test_without_its_keys_a_log_that_holds_something_is_not_opened() -> None:
    disk = made()
    append(disk, OLD, b"one")
    for name in ("keys", "keys.copy"):
        disk.unlink(ROOT / name)
    with pytest.raises(CorruptError, match="keys are missing"):
        open_cipher(ROOT, OLD, BOUND, disk=disk)
    assert not disk.exists(ROOT / "keys")


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_at_every_step_of_a_rotation_loses_nothing(seed: int) -> None:
    for operations in range(1, 40):
        disk = made()
        append(disk, OLD, b"one")
        power, random = Power(disk), Random(seed * 100 + operations)
        power.goes_after(operations)
        disk.fail = power.fails
        ended = False
        try:
            append(disk, BOTH, b"two")
            ended = True
        except PowerLossError:
            pass
        disk.fail = lambda _operation, _path: False
        disk.crash(random)
        found = bodies(disk, BOTH)
        assert found in ([b"one"], [b"one", b"two"])
        assert found == [b"one", b"two"] or not ended
        append(disk, BOTH, b"three")
        assert bodies(disk, NEW) == [*found, b"three"]
        if ended:
            return
    pytest.fail("a rotation has fewer steps")


def test_keys_of_a_log_are_bounded_and_the_last_one_stays() -> None:
    disk = made()
    name = ""
    for number in range(KEYS_MAX + 3):
        name = f"m{number}"
        open_cipher(ROOT, Masters(name, **{f"m{number - 1}": 1, name: 1}), BOUND, disk=disk)
    ring = read_keys(ROOT, Masters(name, **{name: 1}), disk=disk)
    assert ring is not None
    assert len(ring.keys) == KEYS_MAX
    header, body = make_frames(0, [b"x"])[0]
    assert ring.cipher().decrypt(*Encryptor(ring.cipher(), 0).encrypt(header, body), 0)[1] == body


@pytest.mark.parametrize(
    ("masters", "readable", "says"),
    [
        (None, False, "wants the master key old"),
        (NEW, False, "no old"),
        (Masters("old", old=9), False, "not the one"),
        (OLD, True, ""),
    ],
    ids=["none", "missing", "wrong", "right"],
)
def test_who_only_looks_is_told_which_key_is_missing(
    masters: Masters | None, *, readable: bool, says: str
) -> None:
    disk = made()
    append(disk, OLD, b"one")
    keys = InspectedKeys(ROOT, masters, disk)
    assert (keys.readable, keys.fault, keys.cipher is not None) == (readable, "", readable)
    assert says in keys.note
    for name in ("keys", "keys.copy"):
        disk.inode(ROOT / name).seen[20] ^= 1
    broken = InspectedKeys(ROOT, masters, disk)
    assert not broken.readable
    assert "CRC" in broken.fault
