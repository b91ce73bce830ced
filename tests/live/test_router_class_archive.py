"""`penstock router prepare`, and the Spark that uses the archive which it makes."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from penstock.router.spark.java import find_java
from penstock.router.spark.session import ARCHIVE_PATH

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
START = """
import sys
from pathlib import Path
from tests.support.spark import gateway_of, running_spark

with running_spark(Path(sys.argv[1])) as session:
    assert session.spark.range(3).count() == 3
    maps = Path(f"/proc/{gateway_of(session.spark).proc.pid}/maps").read_text()
print(f"archives: {sorted({line.split()[-1] for line in maps.splitlines() if '.jsa' in line})}")
"""


class Environment:
    """A Python environment with an archive of its own, and the packages of this one."""

    def __init__(self, home: Path) -> None:
        self.archive = home / ARCHIVE_PATH.relative_to(sys.prefix)
        self._home = home
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        packages = sysconfig.get_path("purelib")
        (found,) = home.glob("lib/python3*/site-packages")
        (found / "these.pth").write_text(f"import site; site.addsitedir({packages!r})\n")

    def run(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self._home / "bin" / "python", *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def prepare(self) -> "subprocess.CompletedProcess[str]":
        return self.run("-m", "penstock.router", "prepare")

    def starts_spark(self, work_dir: Path) -> "subprocess.CompletedProcess[str]":
        return self.run("-c", START, work_dir)

    def archives_of_spark(self, work_dir: Path) -> str:
        done = self.starts_spark(work_dir)
        assert done.returncode == 0, done.stderr
        return done.stdout


def java_shares_classes(work_dir: Path) -> bool:
    """Whether the Java that Spark runs on has an archive of its own classes."""
    java = find_java(work_dir).home / "bin" / "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    return "sharing" in said.stderr


@pytest.mark.timeout(600)
def test_spark_uses_the_archive_and_passes_over_one_that_does_not_fit(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    archive = environment.archive
    assert str(archive) not in environment.archives_of_spark(tmp_path / "before")
    done = environment.prepare()
    if not java_shares_classes(tmp_path):  # one cut to size for a package may have no archive
        assert done.returncode == 69
        assert "install a whole Java 17 or newer" in done.stderr
        assert str(archive) not in environment.archives_of_spark(tmp_path / "without")
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{archive}: jobs that start from now on use it\n"
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    assert str(archive) in environment.archives_of_spark(tmp_path / "with")
    damaged = bytearray(archive.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    archive.write_bytes(damaged)
    assert environment.starts_spark(tmp_path / "damaged").returncode == 0


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    environment.archive.parent.parent.write_text("a file where a directory would be")
    done = environment.prepare()
    assert done.returncode == 69
    assert str(environment.archive) in done.stderr
    assert "run the command as the user who owns this Python environment" in done.stderr
