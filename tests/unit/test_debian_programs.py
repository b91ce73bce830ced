"""Real servers that cannot be had: tests are skipped on a machine, and red in CI."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.debian import installed, program
from tests.support.debian_daemons import daemon


@pytest.mark.parametrize(
    "find",
    [
        lambda: program("no-such", package="no-such"),
        lambda: daemon("no-such", package="no-such"),
        lambda: installed("no-such"),
    ],
)
def test_a_server_that_is_missing_is_a_skipped_test_and_red_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[[], object]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # nor is apt-get there
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no no-such here"):
        find()
    monkeypatch.setenv("CI", "true")
    with pytest.raises((AssertionError, pytest.skip.Exception)) as caught:  # else skipped itself
        find()
    assert caught.type is AssertionError
