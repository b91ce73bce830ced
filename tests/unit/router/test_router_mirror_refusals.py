"""What a directory and its store are refused for, and what is damaged in the store."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from penstock.router.checkpoint import manifest
from penstock.router.checkpoint.sync import DeadLetterSync
from penstock.service import ConfigError
from tests.support.memory_objects import MemoryObjects
from tests.support.permissions import without_privileges
from tests.unit.router.mirrors import LARGE, files, mirror, write


def test_a_directory_that_is_emptied_under_a_running_job_does_not_empty_the_store(
    tmp_path: Path,
) -> None:
    objects, root = MemoryObjects(), tmp_path / "lake"
    kept = mirror(objects, root)
    kept.begin()
    write(root / "batch.json", b"1")
    kept.persist(1)
    held = dict(objects.held)
    shutil.rmtree(root)
    root.mkdir()
    with pytest.raises(ConfigError, match="was removed while the job runs"):
        kept.persist(1)
    assert objects.held == held


def test_a_link_to_a_directory_is_refused_and_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "spark").symlink_to(tmp_path / "elsewhere")
    kept = mirror(MemoryObjects(), tmp_path / "lake")
    kept.begin()
    with pytest.raises(ConfigError, match="is a link"):
        kept.persist(1)


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"
    kept = mirror(objects, first)
    kept.begin()
    write(first / "batch.json", b"1")
    kept.persist(1)
    with pytest.raises(ConfigError, match="is of the job 'archive'") as told:
        mirror(objects, second, job="other").begin()
    assert "its own store" in told.value.fix
    write(second / "batch.json", b"2")
    with pytest.raises(ConfigError, match=r"has a state, .* does not come from there"):
        mirror(objects, second).begin()
    other = mirror(MemoryObjects(), second)
    other.begin()
    other.persist(1)
    with pytest.raises(ConfigError, match="goes back to another beginning"):
        mirror(objects, second).begin()
    (second / ".stored").write_bytes(b"\xff{")
    with pytest.raises(ConfigError, match=r"\.stored is damaged"):
        mirror(objects, second).begin()


def test_damage_in_the_store_is_told_with_its_name(tmp_path: Path) -> None:
    objects, first = MemoryObjects(), tmp_path / "first"
    kept = mirror(objects, first)
    kept.begin()
    write(first / "left_out.ndjson", os.urandom(LARGE))
    kept.persist(1)
    sound = dict(objects.held)
    (name,) = (it for it in sound if "/manifests/" in it)
    chunk = next(it for it in sound if "/pieces/" in it)
    for damaged, data in ((name, sound[name][:-3]), (name, b""), (chunk, b"x"), (chunk, None)):
        objects.held = {key: it for key, it in sound.items() if key != damaged or data is not None}
        if data is not None:
            objects.held[damaged] = data
        with pytest.raises(ConfigError, match=f"{name} is damaged"):
            mirror(objects, tmp_path / "second").begin()
        shutil.rmtree(tmp_path / "second", ignore_errors=True)


@pytest.mark.parametrize(
    "files",
    [
        {"../outside": "eA=="},
        {"/tmp/outside": "eA=="},
        {"a/../../outside": "eA=="},
        {"": "eA=="},
        {".stored": "eA=="},
        {"scratch/x": "eA=="},
        {"a": ["00000001/../../../../job"]},
        {"a": 1},
        None,
    ],
)
def test_files_that_do_not_belong_to_the_directory_are_refused(
    tmp_path: Path, files: dict[str, object] | None
) -> None:
    document = {"format": 1, "job": "archive", "lineage": "abc", "files": files}
    body = json.dumps(document).encode()
    data = manifest.digest(body).encode() + b"\n" + gzip.compress(body)
    objects = MemoryObjects()
    objects.put("sinks/lake/manifests/00000001-000000000001", data)
    with pytest.raises(ConfigError, match="is damaged"):
        mirror(objects, tmp_path / "root" / "lake").begin()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_names_that_somebody_else_put_there_are_left_alone(tmp_path: Path) -> None:
    """A console of S3 makes an object of each folder."""
    objects, first = MemoryObjects(), tmp_path / "first"
    theirs = [f"sinks/lake/{it}" for it in ("manifests/", "pieces/", "manifests/x", "pieces/x/y")]
    for name in theirs:
        objects.put(name, b"")
    for term in (1, 2):
        kept = mirror(objects, first)
        assert not kept.begin()
        for number in range(4):
            write(first / "a", b"%d" % number)
            kept.persist(term)
    assert mirror(objects, tmp_path / "second").begin()
    assert set(theirs) <= set(objects.held)


def test_a_store_that_was_left_for_another_one_is_not_gone_back_to(tmp_path: Path) -> None:
    """It has what was there when it was left; the directory has come further."""
    objects, others = MemoryObjects(), MemoryObjects()
    kept = mirror(objects, tmp_path)
    kept.begin()
    write(tmp_path / "batch.json", b"old")
    kept.persist(7)
    meanwhile = mirror(others, tmp_path)
    meanwhile.begin()
    write(tmp_path / "batch.json", b"new")
    meanwhile.persist(1)
    with pytest.raises(ConfigError, match="another beginning"):
        mirror(objects, tmp_path).begin()
    assert files(tmp_path) == {"batch.json": b"new"}


def test_a_start_that_came_to_nothing_hinders_none(tmp_path: Path) -> None:
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"
    kept = mirror(objects, first)
    kept.begin()
    write(first / "batch.json", b"1")
    kept.persist(1)
    mirror(MemoryObjects(), second).begin()  # with an URL that was mistyped
    assert mirror(objects, second).begin()


def test_what_would_not_be_the_newest_is_not_stored(tmp_path: Path) -> None:
    """Somebody removed `terms`, and these begin at one again."""
    objects = MemoryObjects()
    kept = mirror(objects, tmp_path)
    kept.begin()
    kept.persist(7)
    again = mirror(objects, tmp_path)
    again.begin()
    with pytest.raises(ConfigError, match="terms were removed"):
        again.persist(1)


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    objects, root = MemoryObjects(), tmp_path / "root"
    kept = mirror(objects, root)
    dead_letters = DeadLetterSync(objects, "letters/lake", root, marker=tmp_path / "marker")
    kept.begin()
    dead_letters.begin(bring=False)
    write(root / "spark/offsets/1", b"x")
    kept.persist(1)
    dead_letters.persist()
    held = dict(objects.held)
    (root / "new").mkdir()
    (root / "spark").chmod(0o300)
    try:
        for keep in (lambda: kept.persist(1), dead_letters.persist):
            with pytest.raises(OSError, match="Permission denied"):
                without_privileges(keep)
    finally:
        (root / "spark").chmod(0o700)
    assert objects.held == held


def test_what_cannot_be_brought_takes_the_place_of_nothing(tmp_path: Path) -> None:
    objects, first, second = MemoryObjects(), tmp_path / "first", tmp_path / "second"
    kept = mirror(objects, first)
    kept.begin()
    write(first / "dedupe.all/0.arrow", os.urandom(LARGE))
    kept.persist(1)
    other = mirror(objects, second)
    other.begin()
    write(second / "dedupe.all/1.arrow", os.urandom(LARGE))
    other.persist(2)
    write(first / "batch.json", b"what was come to here")
    before = files(first)
    for name in [it for it in objects.held if "/pieces/00000002" in it]:
        objects.remove(name)
    with pytest.raises(ConfigError, match="is damaged"):
        mirror(objects, first).begin()
    assert files(first) == before


def test_what_a_later_version_wrote_is_left_alone(tmp_path: Path) -> None:
    objects = MemoryObjects()
    kept = mirror(objects, tmp_path / "first")
    kept.begin()
    kept.persist(1)
    (name,) = (it for it in objects.held if "/manifests/" in it)
    document = json.loads(gzip.decompress(objects.held[name].partition(b"\n")[2]))
    body = json.dumps(document | {"format": 2}).encode()
    objects.held[name] = manifest.digest(body).encode() + b"\n" + gzip.compress(body)
    with pytest.raises(ConfigError, match="a later version wrote it: format 2"):
        mirror(objects, tmp_path / "second").begin()
