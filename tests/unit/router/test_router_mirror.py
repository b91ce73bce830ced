"""A directory and what a store has of it: what comes back is what there was at one moment."""

import os
import random
import shutil
from pathlib import Path

import pytest

from penstock.router.checkpoint.sync import forget
from penstock.service import ConfigError, UnavailableError
from tests.support.memory_objects import MemoryObjects
from tests.unit.router.mirrors import LARGE, files, mirror, write


def test_another_machine_gets_what_was_kept_and_nothing_else(tmp_path: Path) -> None:
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"
    write(first / "spark/offsets/7", b"v1\n{}")
    write(first / "dedupe.all/0.arrow", os.urandom(LARGE))
    write(first / "scratch/out", b"printed")
    write(first / "spark/offsets/.7.crc", b"sum")
    kept = mirror(objects, first)
    assert not kept.begin()
    kept.persist(1)
    write(first / "spark/offsets/8", b"not kept any more")

    assert mirror(objects, second).begin()
    wanted = files(first)
    del wanted["spark/offsets/8"]
    assert files(second) == wanted
    assert not (second / "scratch").exists()
    assert not (second / "spark/offsets/.7.crc").exists()


def test_the_directory_that_was_kept_last_stays_as_it_is(tmp_path: Path) -> None:
    """It has come further than the store knows, and nobody else has gone on."""
    objects = MemoryObjects()
    kept = mirror(objects, tmp_path)
    kept.begin()
    write(tmp_path / "batch.json", b"kept")
    kept.persist(1)
    write(tmp_path / "batch.json", b"later")
    assert not mirror(objects, tmp_path).begin()
    assert files(tmp_path) == {"batch.json": b"later"}


def test_after_a_start_of_the_machine_the_store_s_is_taken(tmp_path: Path) -> None:
    """Spark does not sync its files: of the last ones the disk may have none."""
    objects = MemoryObjects()
    kept = mirror(objects, tmp_path)
    kept.begin()
    write(tmp_path / "spark/offsets/7", b"v1")
    kept.persist(1)
    (tmp_path / "spark/offsets/7").write_bytes(b"")
    assert mirror(objects, tmp_path, boot="2").begin()
    assert files(tmp_path) == {"spark/offsets/7": b"v1"}
    assert not mirror(objects, tmp_path, boot="2").begin()


def test_a_directory_that_went_on_without_its_store_is_not_taken_for_its_state(
    tmp_path: Path,
) -> None:
    objects = MemoryObjects()
    kept = mirror(objects, tmp_path)
    kept.begin()
    write(tmp_path / "batch.json", b"1")
    kept.persist(1)
    forget(tmp_path)
    with pytest.raises(ConfigError, match="does not come from there"):
        mirror(objects, tmp_path).begin()


def test_a_directory_that_others_went_on_from_is_brought_up_to_date(tmp_path: Path) -> None:
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"
    kept = mirror(objects, first)
    kept.begin()
    write(first / "gone/0", b"of old")
    write(first / "batch.json", b"old")
    kept.persist(1)
    other = mirror(objects, second)
    assert other.begin()
    shutil.rmtree(second / "gone")
    write(second / "batch.json", b"new")
    other.persist(2)
    write(first / "batch.json", b"never kept")
    write(first / "gone/.0.crc", b"sum")

    assert mirror(objects, first).begin()
    assert files(first) == {"batch.json": b"new"}
    assert not (first / "gone").exists()


def test_who_was_ended_while_bringing_brings_it_whole_the_next_time(tmp_path: Path) -> None:
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"
    kept = mirror(objects, first)
    kept.begin()
    for number in range(5):
        write(first / f"dedupe.all/{number}.arrow", os.urandom(2000))
    kept.persist(1)
    for count in range(3, 8):
        objects.fail_after(count)
        with pytest.raises(UnavailableError):
            mirror(objects, second).begin()
        write(second / ".coming/half.json", b"of a killed one")
    objects.fail_after(1000)
    assert mirror(objects, second).begin()
    assert files(second) == files(first)
    note = second / ".stored"
    note.write_bytes(note.read_bytes().replace(b"true", b"false"))  # killed while all of it moves
    write(second / "half.json", b"of a killed one")
    assert mirror(objects, second).begin()
    assert files(second) == files(first)


def test_of_a_file_that_grows_only_the_end_is_stored_anew(tmp_path: Path) -> None:
    objects = MemoryObjects()
    kept = mirror(objects, tmp_path)
    kept.begin()
    data = os.urandom(LARGE)
    write(tmp_path / "batches.ndjson", data)
    kept.persist(1)
    objects.asked.clear()
    with (tmp_path / "batches.ndjson").open("ab") as file:
        file.write(b"more")
    kept.persist(1)
    put = [name for method, name in objects.asked if method == "put"]
    assert [name.split("/")[2] for name in put] == ["pieces", "manifests"]
    objects.asked.clear()
    kept.persist(1)
    assert objects.asked == []


def test_what_no_manifest_needs_any_more_is_removed(tmp_path: Path) -> None:
    objects = MemoryObjects()
    for term in range(1, 4):  # the process is started again and again
        kept = mirror(objects, tmp_path)
        kept.begin()
        for number in range(10):
            write(tmp_path / "left_out.ndjson", os.urandom(LARGE))
            write(tmp_path / f"dedupe.all/{number}.arrow", os.urandom(3000))
            (tmp_path / f"dedupe.all/{number - 3}.arrow").unlink(missing_ok=True)
            kept.persist(term)
    # Two manifests; of either the three pieces of one file, and of others one each.
    assert len([name for name in objects.held if "/manifests/" in name]) == 2
    assert len([name for name in objects.held if "/pieces/" in name]) <= 2 * 3 + 10 + 4


@pytest.mark.parametrize("seed", range(150))
def test_whenever_the_store_fails_another_machine_finds_one_moment(
    tmp_path: Path, seed: int
) -> None:
    rng, objects = random.Random(seed), MemoryObjects()
    root = tmp_path / "0"
    kept, term, moments = mirror(objects, root), 1, [dict[str, bytes]()]
    kept.begin()
    for step in range(40):
        for _ in range(rng.randint(0, 3)):
            _change(root, rng)
        objects.fail_after(rng.choice([0, 1, 2, 3, 1000, 1000, 1000]))
        moments.append(files(root))
        try:
            kept.persist(term)
            moments = moments[-1:]
        except UnavailableError:
            pass
        objects.fail_after(100_000)
        if rng.random() < 0.2:
            term += 1
            lost = rng.random() < 0.7
            root = tmp_path / f"{step + 1}" if lost else root
            before = files(root)
            kept = mirror(objects, root)
            if kept.begin():
                assert files(root) in moments, f"step {step}"
                moments = [files(root)]
            else:
                assert files(root) == before, f"step {step}"
    kept.persist(term)
    assert mirror(objects, tmp_path / "another machine").begin()
    assert files(tmp_path / "another machine") == files(root)


def _change(root: Path, rng: random.Random) -> None:
    path = root / rng.choice(["a.json", "b/c.arrow", "b/d.arrow", "log.ndjson"])
    match rng.randrange(3):
        case 0:
            path.unlink(missing_ok=True)
        case 1:
            write(path, rng.randbytes(rng.choice([0, 10, 5000, LARGE])))
        case _ if path.exists():
            with path.open("ab") as file:
                file.write(rng.randbytes(100))
        case _:
            pass
