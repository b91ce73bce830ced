"""The stamp of data directories: what is newer is refused, what is older is upgraded."""

from importlib.metadata import version
from pathlib import Path

import pytest

from penstock.service.data_format import FILE_NAME, DataFormat, DataFormatError


def files(directory: Path) -> dict[str, bytes]:
    """Everything in a directory, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_directory_without_a_stamp_is_stamped_as_the_first_version(tmp_path: Path) -> None:
    """That is what releases before the stamp wrote."""
    (tmp_path / "data").write_bytes(b"old")
    DataFormat("logd").open(tmp_path)
    release = version("penstock")
    assert {"data": b"old", FILE_NAME: f"penstock logd 1 {release}\n".encode()} == files(tmp_path)


def test_a_stamp_of_this_version_is_left_as_it_is(tmp_path: Path) -> None:
    """It names the release that wrote the format first."""
    (tmp_path / FILE_NAME).write_text("penstock logd 1 0.0.9\n")
    DataFormat("logd").open(tmp_path)
    assert files(tmp_path) == {FILE_NAME: b"penstock logd 1 0.0.9\n"}


def test_a_newer_version_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    """The message says which release to start."""
    (tmp_path / FILE_NAME).write_text("penstock logd 3 9.4.0\n")
    with pytest.raises(DataFormatError) as refused:
        DataFormat("logd", 2, {1: Path.touch}).open(tmp_path)
    assert "has data format 3, written by Penstock 9.4.0" in refused.value.reason
    assert "start Penstock 9.4.0 or later" in refused.value.fix
    assert files(tmp_path) == {FILE_NAME: b"penstock logd 3 9.4.0\n"}


def test_an_older_version_is_upgraded_step_by_step(tmp_path: Path) -> None:
    """Each step is stamped, so that a crash between two of them repeats none of the first."""
    steps: list[str] = []

    def step(directory: Path) -> None:
        steps.append((directory / FILE_NAME).read_text() if steps else "")

    DataFormat("logd", 3, {1: step, 2: step}).open(tmp_path)
    release = version("penstock")
    assert ["", f"penstock logd 2 {release}\n"] == steps
    assert f"penstock logd 3 {release}\n" == (tmp_path / FILE_NAME).read_text()


def test_an_upgrade_that_fails_leaves_the_old_stamp(tmp_path: Path) -> None:
    """The next start does it again."""

    def fail(_: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / FILE_NAME).write_text("penstock logd 1 0.0.9\n")
    with pytest.raises(OSError, match="No space"):
        DataFormat("logd", 2, {1: fail}).open(tmp_path)
    assert (tmp_path / FILE_NAME).read_text() == "penstock logd 1 0.0.9\n"


def test_the_directory_of_another_part_is_refused(tmp_path: Path) -> None:
    """A logd that is given a collector's directory does not write into it."""
    DataFormat("collector").open(tmp_path)
    with pytest.raises(DataFormatError, match="holds the data of a collector, not of a logd"):
        DataFormat("logd").open(tmp_path)


@pytest.mark.parametrize("text", ["", "penstock logd 1", "penstock logd x 1.0\n", "\xff" * 300])
def test_a_damaged_stamp_is_refused(tmp_path: Path, text: str) -> None:
    """A guess could let an old program write into new data."""
    (tmp_path / FILE_NAME).write_text(text, encoding="latin-1")
    with pytest.raises(DataFormatError, match="no stamp of Penstock's"):
        DataFormat("logd").check(tmp_path)


def test_a_stamp_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A directory in its place, for one."""
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(DataFormatError, match="Is a directory"):
        DataFormat("logd").check(tmp_path)


def test_a_file_in_place_of_the_directory_has_no_stamp(tmp_path: Path) -> None:
    """No backup mends it; who makes the directory says that it cannot be made."""
    (tmp_path / "file").touch()
    assert DataFormat("logd").check(tmp_path / "file") is None
