"""The journal of audit records: what it says after any crash, and files of it."""

import os
import random
import resource
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from penstock.specs.emit.delivery.journal import SpillFile, orphans
from penstock.specs.emit.delivery.queue import line_of
from penstock.specs.emit.delivery.spill import Spill
from penstock.specs.environment import usable_directory

SEEDS = 300


class World:
    """An application, its journal, a collector, and crashes; one seed draws everything.

    What must hold: the collector takes every record that was accepted once, in order.
    """

    def __init__(self, seed: int, *, forgets_sent: bool = False) -> None:
        self.dice = random.Random(seed)
        self.forgets_sent = forgets_sent
        self.disk = b""
        self.spill = Spill(2_000, b'{"a":1}')
        self.accepted: list[bytes] = []
        self.taken: list[bytes] = []
        self.last = 0
        self.answers: deque[int] = deque()

    def run(self) -> None:
        for number in range(120):
            self.dice.choice((self.offer, self.offer, self.send, self.answer, self.crash))(number)
        for number in range(500):
            if not self.spill.held:
                break
            self.send(number)
            self.answer(number)
        assert self.taken == self.accepted

    def offer(self, number: int) -> None:
        line = b"%d-" % number + b"x" * self.dice.randrange(60)
        entry = self.spill.offer(line)
        if entry is not None:
            self.disk += entry
            self.accepted.append(line)

    def send(self, _: int) -> None:
        """Send the next batch, or the one on its way again; its answer may get lost."""
        if self.spill.flight == 0:
            if not self.spill.records:
                return
            _taken, entry = self.spill.send(records_max=self.dice.randint(1, 5), bytes_max=200)
            if not self.forgets_sent:
                self.disk += entry
        batch = self.spill.batch()
        assert batch is not None
        if self.dice.random() < 0.7:
            if batch.sequence > self.last:
                self.last = batch.sequence
                self.taken += [line_of(record) for record in batch.records]
            self.answers.append(batch.sequence)

    def answer(self, _: int) -> None:
        if self.answers:
            self.disk += self.spill.settle(self.answers.popleft()) or b""

    def crash(self, number: int) -> None:
        """The process dies while it writes another entry; or its journal is rewritten before."""
        if self.dice.random() < 0.3:
            self.disk = self.spill.content()
        torn = (Spill(10_000).offer(b"torn-%d" % number) or b"")[: self.dice.randrange(12)]
        self.answers.clear()
        again = Spill(2_000)
        assert again.replay(self.disk + torn) == len(self.disk)
        assert again.resource_json in (b"{}", b'{"a":1}')
        self.spill = again


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_every_record_arrives_once_and_in_order_whatever_dies(first: int) -> None:
    for seed in range(first, first + 50):
        World(seed).run()


def test_a_journal_that_does_not_know_what_was_sent_is_caught() -> None:
    """The known-bad twin: without its entry a batch is sent again with other records."""

    def fails(seed: int) -> bool:
        try:
            World(seed, forgets_sent=True).run()
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(50))


def unsettled(journal: bytes) -> list[bytes]:
    """The records that a reader of the journal still has to send."""
    spill = Spill(2_000)
    spill.replay(journal)
    found: list[bytes] = []
    while spill.held:
        if not spill.flight:
            spill.send(records_max=spill.held, bytes_max=2_000)
        batch = spill.batch()
        assert batch is not None
        found += [line_of(record) for record in batch.records]
        spill.settle(spill.sequence)
    return found


class PowerWorld(World):
    """The machine loses its power: of what was not synced, some is left.

    What must hold: what was synced arrives, in order, though some of it twice.
    """

    def __init__(self, seed: int, *, keeps_name: bool = False) -> None:
        super().__init__(seed)
        self.keeps_name = keeps_name
        self.synced = 0
        self.safe: set[bytes] = set()

    @override
    def run(self) -> None:
        steps = (self.offer, self.offer, self.offer, self.send, self.answer, self.sync, self.power)
        for number in range(150):
            self.dice.choice(steps)(number)
        for number in range(500):
            if not self.spill.held:
                break
            self.send(number)
            self.answer(number)
        assert list(dict.fromkeys(self.taken)) == self.accepted

    def sync(self, _: int) -> None:
        self.synced = len(self.disk)
        self.safe |= set(self.accepted)

    def power(self, _: int) -> None:
        disk = self.disk[: self.dice.randint(self.synced, len(self.disk))]
        self.spill = Spill(2_000)
        self.disk = disk[: self.spill.replay(disk)]
        assert len(self.disk) >= self.synced
        self.answers.clear()
        if not self.keeps_name:  # an adopted journal of an earlier boot is another sender's
            self.last = 0
        left = {*self.taken, *unsettled(self.disk)}
        assert self.safe <= left, "what was synced is there"
        self.accepted = [line for line in self.accepted if line in left]


def test_what_was_synced_arrives_though_power_fails() -> None:
    for seed in range(SEEDS):
        PowerWorld(seed).run()


def test_a_journal_that_keeps_its_name_after_a_power_loss_is_caught() -> None:
    """The known-bad twin: the collector takes what it has not seen for a repeat."""

    def fails(seed: int) -> bool:
        try:
            PowerWorld(seed, keeps_name=True).run()
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(50))


def test_what_does_not_fit_is_refused() -> None:
    spill = Spill(10)
    assert spill.offer(b"12345678")
    assert spill.offer(b"123") is None
    assert spill.offer(b"12")
    assert spill.held == 2


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_can_be_replayed(data: bytes, records: int) -> None:
    spill = Spill(1_000)
    good = b"".join(spill.offer(b"x%d" % number) or b"" for number in range(records))
    again = Spill(1_000)
    assert again.replay(good + data) >= len(good)
    assert again.held >= records


def make(directory: Path, name: str = "a-audit", *, bytes_max: int = 4_000) -> SpillFile:
    return SpillFile(directory / f"{name}.spill", Spill(bytes_max, b'{"service.name":"a"}'))


def say(file: SpillFile, *lines: bytes) -> None:
    for line in lines:
        assert file.offer(line)


def test_a_journal_is_adopted_only_when_its_process_has_died(tmp_path: Path) -> None:
    file = make(tmp_path)
    say(file, b"one", b"two")
    assert list(orphans(tmp_path, 4_000, "boot")) == []
    file.forget()
    (found,) = orphans(tmp_path, 4_000, "boot")
    assert found.spill.held == 2
    assert found.spill.resource_json == b'{"service.name":"a"}'
    assert list(orphans(tmp_path, 4_000, "boot")) == []
    found.forget()


def test_a_journal_with_nothing_left_is_deleted(tmp_path: Path) -> None:
    file = make(tmp_path)
    say(file, b"one")
    file.take(records_max=1, bytes_max=10)
    file.settle(1)
    file.forget()
    assert list(orphans(tmp_path, 4_000, "boot")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_grew_is_rewritten_and_says_the_same(tmp_path: Path) -> None:
    file = make(tmp_path, bytes_max=2_000)
    for number in range(200):
        say(file, b"%d" % number * 20)
        file.take(records_max=1, bytes_max=100)
        if number < 199:
            file.settle(file.spill.sequence)
    assert file.path.stat().st_size < 4_000
    file.forget()
    (found,) = orphans(tmp_path, 2_000, "boot")
    assert (found.spill.sequence, found.spill.flight, found.spill.held) == (200, 1, 1)
    found.remove()


@pytest.mark.parametrize(
    ("name", "adopted"),
    [
        ("p-1-boot-audit", "p-1-boot-audit"),  # of this boot: the collector knows what it has
        ("p-1-before-audit", "p-1-boot-audit"),
        ("other", "other"),
    ],
)
def test_a_journal_of_an_earlier_boot_is_adopted_as_another_sender(
    tmp_path: Path, name: str, adopted: str
) -> None:
    file = make(tmp_path, name)
    say(file, b"one")
    file.forget()
    (found,) = orphans(tmp_path, 4_000, "boot")
    assert (found.path.stem, found.spill.held) == (adopted, 1)
    assert [path.stem for path in tmp_path.iterdir()] == [adopted]
    found.remove()
    assert list(tmp_path.iterdir()) == []


def sync(file: SpillFile) -> bool:
    opened = file.opened()
    assert opened is not None
    descriptor, number, written = opened
    done = file.sync(descriptor)
    file.was_synced(number, written, done=done)
    return done


def test_what_is_written_during_a_sync_is_for_the_next(tmp_path: Path) -> None:
    file = make(tmp_path)
    say(file, b"one", b"two")
    opened = file.opened()
    assert opened is not None
    say(file, b"three")
    file.was_synced(*opened[1:], done=file.sync(opened[0]))
    assert (file.synced, file.written) == (2, 3)
    assert sync(file)
    assert file.synced == 3
    file.remove()


def test_a_sync_of_a_file_that_was_replaced_says_nothing(tmp_path: Path) -> None:
    file = make(tmp_path)
    say(file, b"one")
    opened = file.opened()
    assert opened is not None
    file.remove()
    say(file, b"two")
    file.was_synced(*opened[1:], done=file.sync(opened[0]))
    assert file.synced == 0
    file.remove()


def test_a_file_that_could_not_be_synced_is_made_anew(tmp_path: Path) -> None:
    file = make(tmp_path)
    say(file, b"one", b"two")
    before = file.path.stat().st_ino
    keep = file.path.open("rb")  # so that its number is not given out again
    opened = file.opened()
    assert opened is not None
    descriptor, number, written = opened
    os.close(descriptor)
    reading, pipe = os.pipe()  # which the kernel refuses to sync
    os.close(reading)
    done = file.sync(pipe)
    assert not done
    file.was_synced(number, written, done=done)
    assert (file.synced, file.failures) == (0, 1)
    assert file.path.stat().st_ino != before
    assert sync(file)
    assert file.synced == 2
    keep.close()
    file.forget()
    (found,) = orphans(tmp_path, 4_000, "boot")
    assert found.spill.held == 2
    found.remove()


def test_what_the_disk_refuses_stays_in_memory_and_is_written_later(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    file = make(directory)
    say(file, b"one")
    assert (file.failures, file.spill.held) == (1, 1)
    directory.mkdir()
    say(file, b"two")
    file.forget()
    (found,) = orphans(directory, 4_000, "boot")
    assert found.spill.held == 2
    found.remove()


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    assert usable_directory(tmp_path / "own" / "deep")
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o777)  # noqa: PTH101 - beside the call that is tested
    assert not usable_directory(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    assert not usable_directory(tmp_path / "link")
    (tmp_path / "file").write_text("")
    assert not usable_directory(tmp_path / "file")


@pytest.mark.parametrize("spare", [0, 5])  # nothing of the entry is written, or a part
def test_a_journal_that_cannot_be_appended_to_is_made_anew_at_once(
    tmp_path: Path, spare: int
) -> None:
    """There is room for it without what is settled."""
    file = make(tmp_path)
    say(file, b"x" * 3_000)
    file.take(records_max=1, bytes_max=3_000)
    file.settle(1)
    say(file, b"one")
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + spare, bounds[1]))
    try:
        say(file, b"two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert file.failures == 1
    file.forget()  # as the process dies
    (found,) = orphans(tmp_path, 4_000, "boot")
    assert found.spill.held == 2
    found.remove()


@contextmanager
def full_disk(file: SpillFile, spare: int = 0) -> Iterator[None]:
    """No file may grow beyond what this one has, and a few bytes."""
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + spare, bounds[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)


def adopted(directory: Path) -> list[tuple[str, int, list[bytes]]]:
    """What another process finds: each sender's name, its last sequence, the records to send."""
    return [
        (found.path.stem, found.spill.sequence, unsettled(found.path.read_bytes()))
        for found in orphans(directory, 4_000, "boot")
    ]


@pytest.mark.parametrize("spare", [0, 5])
def test_a_full_disk_keeps_what_the_journal_has_and_takes_the_rest_later(
    tmp_path: Path, spare: int
) -> None:
    for has_room in (False, True):
        file = make(tmp_path, "a-boot-audit")
        say(file, b"one", b"two")
        assert sync(file)
        with full_disk(file, spare):
            say(file, b"three", b"four")
            assert [path.name for path in tmp_path.iterdir()] == [file.path.name]
            assert sync(file)
            assert file.synced < file.written, "not all is on the disk"
        if has_room:
            say(file, b"five")
        file.forget()  # as the process dies
        more = [b"three", b"four", b"five"] if has_room else []
        assert adopted(tmp_path) == [("a-boot-audit", 0, [b"one", b"two", *more])]
        file.path.unlink()


def test_what_was_sent_on_a_full_disk_is_sent_again_by_another_sender(tmp_path: Path) -> None:
    """Under its own name its next batch would have a sequence that the collector knows."""
    for has_room in (False, True):
        file = make(tmp_path, "a-boot-audit")
        say(file, b"one", b"two")
        with full_disk(file):
            taken = file.take(records_max=1, bytes_max=100)
            assert [line_of(record) for record in taken] == [b"one"]
        if has_room:
            say(file, b"three")
        file.forget()
        ((name, sequence, records),) = adopted(tmp_path)
        if has_room:
            assert (name, sequence) == ("a-boot-audit", 1)
            assert records == [b"one", b"two", b"three"]
        else:
            assert (name == "a-boot-audit", sequence) == (False, 0)
            assert records == [b"one", b"two"]
        for path in tmp_path.iterdir():
            path.unlink()


def test_a_full_disk_leaves_nothing_of_what_is_settled(tmp_path: Path) -> None:
    file = make(tmp_path)
    say(file, b"one")
    with full_disk(file):
        file.take(records_max=1, bytes_max=100)
        assert len(list(tmp_path.iterdir())) == 1
        file.settle(1)
        assert len(list(tmp_path.iterdir())) <= 1
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_can_be_neither_synced_nor_made_anew_is_kept_and_not_believed(
    tmp_path: Path,
) -> None:
    file = make(tmp_path, "a-boot-audit")
    say(file, b"one", b"two")
    opened = file.opened()
    assert opened is not None
    os.close(opened[0])
    with full_disk(file, spare=-1):
        file.was_synced(*opened[1:], done=False)
        assert sync(file)  # the kernel tells of a failure once
        assert file.synced == 0
    file.forget()
    assert adopted(tmp_path) == [("a-boot-audit", 0, [b"one", b"two"])]
