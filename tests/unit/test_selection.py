"""Which tests a run takes: the parts are all of it, and a skip in CI is a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST, first_proofs, shard_of

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
LIVE = "import pytest\npytestmark = pytest.mark.live\n"
TWO = "@pytest.mark.parametrize('n', [1, 2])\n"
FILES = {
    "test_pure.py": "def test_pure(): pass",
    "test_proof.py": f"{LIVE}def test_kill_of_logd_loses_and_repeats_nothing(): pass",
    "test_other.py": f"{LIVE}{TWO}def test_other(n): pass",
    "test_third.py": f"{LIVE}def test_third(): pass\ndef test_second_proof(): pass",
    f"{LONGEST[0]}.py": f"{LIVE}{TWO}def test_long(n): pass",
}
PROOF = "docs/guarantees.md"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of four files that uses this project's selection."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / PROOF).write_text(
        "| kills | `test_kill_of_logd_loses_and_repeats_nothing`, `test_second_proof` |\n"
    )
    text = CONFTEST.read_text().replace("from tests.support.nats_server", "from contextlib")
    text = text.replace("import running_nats_server", "import nullcontext as running_nats_server")
    (tests / "conftest.py").write_text(text)
    for name, content in FILES.items():
        (tests / name).write_text(content)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = live: real\n")
    return tmp_path


def collected(tree: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:randomly"]
    done = subprocess.run([*command, "tests", *arguments], cwd=tree, capture_output=True, text=True,
                          check=False)  # fmt: skip
    return sorted(line.split("::")[1] for line in done.stdout.splitlines() if "::" in line)


def test_the_first_proof_of_each_promise_is_run_and_the_rest_is_everything_else(
    tree: Path,
) -> None:
    every = collected(tree)
    assert len(every) == 8
    promised, rest = collected(tree, "--promised"), collected(tree, "--rest")
    assert promised == ["test_kill_of_logd_loses_and_repeats_nothing", "test_pure"]
    assert sorted(promised + rest) == every


def test_shards_are_everything_and_share_the_longest_files_alone(tree: Path) -> None:
    shards = [collected(tree, "--rest", "--shard", f"{part}/2") for part in (1, 2)]
    assert [sum("test_long" in name for name in shard) for shard in shards] == [1, 1]
    others = [{name.partition("[")[0] for name in shard} - {"test_long"} for shard in shards]
    assert others[0] & others[1] == set()
    assert sorted(shards[0] + shards[1]) == collected(tree, "--rest")


def test_a_row_a_paragraph_and_an_item_of_a_list_are_promises() -> None:
    table = "| a | `test_a`, `test_b` |\n| c | `test_c` |\n"
    text = f"{table}\nOne\n`test_d`, `test_e`.\n\n- `test_f`\n- `test_g`\n"
    assert list(first_proofs(text)) == ["test_a", "test_c", "test_d", "test_f", "test_g"]


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "1", "1/0", ""])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="write it as K/N"):
        shard_of(text)


@pytest.mark.parametrize(
    ("ci", "reason", "code"),
    [("", "anything", 0), ("true", "anything", 1), ("true", "kubectl is not here", 0)],
)
def test_a_skip_in_ci_is_a_failure_unless_it_is_listed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, ci: str, reason: str, code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    test = f"import pytest\ndef test_skipped(): pytest.skip({reason!r})\n"
    (tree / "tests" / "test_skipped.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "tests"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert (f"test_skipped: Skipped: {reason}" in done.stdout) == (code == 1)
