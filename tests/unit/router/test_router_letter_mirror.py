"""Dead letters and what a store has of them."""

import os
from pathlib import Path

import pytest

from penstock.router.checkpoint.sync import DeadLetterSync
from penstock.service import ConfigError
from tests.support.memory_objects import MemoryObjects
from tests.unit.router.mirrors import files, write, write_long_ago


def test_letters_go_to_the_store_and_from_there_to_another_machine(tmp_path: Path) -> None:
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"
    (tmp_path / "other").mkdir()

    def dead_letters(root: Path, marker: Path) -> DeadLetterSync:
        return DeadLetterSync(objects, "letters/lake", root, marker=marker)

    here, there = tmp_path / "marker", tmp_path / "other" / "marker"
    kept = dead_letters(first, here)
    kept.begin(bring=False)
    write_long_ago(first / "a.ndjson", b"a")
    write_long_ago(first / "b.ndjson", b"b")
    kept.persist()
    write_long_ago(first / "b.ndjson", b"b, refused again", at=2)
    (first / "done").mkdir()
    (first / "a.ndjson").rename(first / "done" / "a.ndjson")
    kept.persist()
    held = {"letters/lake/b.ndjson": b"b, refused again", "letters/lake/done/a.ndjson": b"a"}
    assert objects.held == held

    moved = dead_letters(second, there)
    moved.begin(bring=True)
    assert files(second) == {"b.ndjson": b"b, refused again", "done/a.ndjson": b"a"}
    (second / "b.ndjson").rename(second / "done" / "b.ndjson")
    moved.persist()

    # Back where it was before: what was replayed meanwhile does not wait again, what came does.
    write(first / "new.ndjson", b"never stored")
    back = dead_letters(first, here)
    back.begin(bring=True)
    back.persist()
    names = ["done/a.ndjson", "done/b.ndjson", "new.ndjson"]
    assert sorted(files(first)) == names
    assert sorted(objects.held) == [f"letters/lake/{name}" for name in names]


def test_what_another_machine_changed_takes_the_place_of_what_was_stored_here(
    tmp_path: Path,
) -> None:
    """As `replays.ndjson`, which grows wherever somebody replays."""
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"

    def notes(root: Path) -> DeadLetterSync:
        marker = tmp_path / f"{root.name}.marker"
        return DeadLetterSync(objects, "letters", root, marker=marker, only="replays.ndjson")

    kept = notes(first)
    kept.begin(bring=False)
    write_long_ago(first / "replays.ndjson", b"1\n")
    kept.persist()
    moved = notes(second)
    moved.begin(bring=True)
    write_long_ago(second / "replays.ndjson", b"1\n2\n", at=2)
    moved.persist()
    back = notes(first)
    back.begin(bring=True)
    with (first / "replays.ndjson").open("ab") as file:
        file.write(b"3\n")
    back.persist()
    assert objects.held == {"letters/replays.ndjson": b"1\n2\n3\n"}


def test_a_letter_of_the_same_tick_is_stored_as_well(tmp_path: Path) -> None:
    objects, root = MemoryObjects(), tmp_path / "letters"
    kept = DeadLetterSync(objects, "letters/lake", root, marker=tmp_path / "marker")
    kept.begin(bring=False)
    write(root / "a.ndjson", b"a")
    now = root.stat().st_mtime_ns + 10**12  # one tick that takes long
    os.utime(root, ns=(now, now))
    kept.persist()
    write(root / "b.ndjson", b"b")
    os.utime(root, ns=(now, now))
    kept.persist()
    assert sorted(objects.held) == ["letters/lake/a.ndjson", "letters/lake/b.ndjson"]


def test_letters_lead_nowhere_else(tmp_path: Path) -> None:
    objects = MemoryObjects()
    objects.put("letters/lake/../../outside", b"x")
    dead_letters = DeadLetterSync(
        objects, "letters/lake", tmp_path / "a" / "b", marker=tmp_path / "m"
    )
    with pytest.raises(ConfigError, match="leads out of"):
        dead_letters.begin(bring=True)
    assert not (tmp_path / "outside").exists()


def test_letters_that_the_store_has_are_not_stored_again(tmp_path: Path) -> None:
    objects, marker = MemoryObjects(), tmp_path / "marker"
    root = tmp_path / "letters"
    for number in range(3):
        kept = DeadLetterSync(objects, "letters/lake", root, marker=marker)
        kept.begin(bring=False)
        write_long_ago(root / f"{number}.ndjson", b"x")
        kept.persist()
    put = [name for method, name in objects.asked if method == "put"]
    assert put == [f"letters/lake/{number}.ndjson" for number in range(3)]
