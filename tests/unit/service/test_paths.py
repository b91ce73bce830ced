"""Paths in configurations: impossible ones are refused when they are read, others made absolute."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from penstock.service import FilePath, SocketPath


class _Paths(BaseModel):
    file: FilePath = Path("/")
    socket: SocketPath = Path("/")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must not be empty"),
        ("/var/lib/a\0b", "NUL"),
        (f"/{'a' * 256}", "255 bytes from one slash to the next"),
        (f"/{'ä' * 128}/b", "255 bytes from one slash to the next"),
        ("/ab" * 1366, "at most 4095 bytes"),
        ("~/logs/a", "begins with ~, which is not expanded: write the whole path"),
        ("/var/${HOST}/a", r"has \$\{HOST\}, which is not expanded"),
        ("$HOME/a", r"has \$HOME, which is not expanded"),
    ],
)
@pytest.mark.parametrize("key", ["file", "socket"])
def test_what_no_file_can_be_named_by_is_refused(key: str, text: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        _Paths.model_validate({key: text})


def test_a_path_that_is_not_absolute_is_of_the_directory_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read = _Paths.model_validate({"file": "a/../b", "socket": "s"})
    assert (read.file, read.socket) == (tmp_path / "a/../b", tmp_path / "s")


def test_a_path_of_a_socket_has_its_bound_once_it_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _Paths.model_validate({"socket": f"/{chr(115) * 106}"}).socket.name
    with pytest.raises(ValidationError, match="at most 107 bytes"):
        _Paths.model_validate({"socket": f"/{'s' * 107}"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError, match="at most 107 bytes"):
        _Paths.model_validate({"socket": "s" * 107})
