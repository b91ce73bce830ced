"""What shells are told to complete, and users who mistype a command."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from penstock.deploy.cli import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_ask(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in done.stdout


def test_another_shell_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 64


def test_what_a_shell_asks_is_answered() -> None:
    asked = {
        "_PENSTOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": "penstock logd streams r",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from penstock.deploy.main import main; main()"],
        env=os.environ | asked, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["plain,readonly", "plain,resume"]


def test_a_part_that_is_mistyped_is_proposed() -> None:
    done = CliRunner().invoke(cli, ["colector"])
    assert done.exit_code == 64
    assert "'collector'" in done.stderr
