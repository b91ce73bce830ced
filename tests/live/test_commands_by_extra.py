"""Every command in the environment of every extra: it works, or says which extra it needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.service import ExitCode

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("extra", ["service", "logd", "query", "collector", "router", "all"])
def test_every_command_works_with_an_extra_or_names_another(extra: str, tmp_path: Path) -> None:
    """Each in an environment of that extra alone, with servers and files that are not there."""
    command = [sys.executable, "-m", "tests.support.extras_only", str(tmp_path), extra]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=360
    )
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ended) > 2 * 20, "the commands of `penstock` itself and of `penstock specs`"
    expected = {*range(2), *map(int, ExitCode)} - {ExitCode.SOFTWARE}
    odd = [end for end in ended if end["code"] not in expected or "Traceback" in end["stderr"]]
    assert odd == []
    needed = [end for end in ended if "which is not installed" in end["stderr"]]
    assert (needed == []) == (extra == "all")
    assert [end for end in needed if not re.search(r"pip install '.+\[\w+\]'", end["stderr"])] == []


@pytest.mark.parametrize("brought", [[], ["click"], ["click", "pyyaml"]])
def test_the_command_in_an_app_says_that_it_has_no_commands(
    brought: list[str], tmp_path: Path
) -> None:
    """With libraries that the app has for itself, as Flask brings click."""
    program = (
        "import sys; from tests.support.extras_only import forbid_all_but\n"
        f"forbid_all_but(['app'], brought={brought})\n"
        "sys.argv = ['penstock', 'up']; from penstock.deploy.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert re.fullmatch(
        r"error: (this installation is the spec library for applications, without commands"
        r"|this command needs \w+, which is not installed)\n"
        r"  fix: pip install '.+\[all\]'\n",
        done.stderr,
    )
