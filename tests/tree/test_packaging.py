"""The wheel as an application gets it: no extras, nothing but pydantic beside it."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EMIT_ONE = """
from penstock import specs
record = specs.decode({line!r})
assert specs.decode(specs.encode(record)) == record
print(record.kind)
"""
RECORD = (
    b'{"schema":"log/1.0","kind":"log","time_unix_nano":1,"severity_number":9,"body":"hello",'
    b'"resource":{"service.name":"app","service.version":"1","service.instance.id":"i",'
    b'"deployment.environment.name":"test"}}'
)


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    clean = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    clean |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=clean, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    built = _run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory, ROOT
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = directory.glob("penstock-*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that holds the wheel without extras."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=True)
    installed = _run(directory / "bin" / "pip", "install", "--quiet", wheel)
    assert installed.returncode == 0, installed.stderr
    return directory / "bin"


def test_the_wheel_holds_every_home_and_no_package_root(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    parts = {name.split("/")[1] for name in names if name.startswith("penstock/")}
    assert parts >= {"specs", "collector", "logd", "router", "deploy", "service"}
    assert "penstock/__init__.py" not in names
    tests = {name for name in names if name.endswith(".py") and "test" in name.split("/")[-1]}
    assert tests == {"penstock/specs/pytest_plugin.py", "penstock/specs/testing.py"}


def test_the_base_install_brings_pydantic_and_nothing_else(bare: Path) -> None:
    listed = _run(bare / "pip", "list", "--format=freeze").stdout.lower()
    names = {line.partition("==")[0].partition(" @")[0] for line in listed.splitlines()}
    assert {name.replace("_", "-") for name in names} - {"pip", "setuptools"} == {
        "penstock", "pydantic", "pydantic-core", "annotated-types", "typing-extensions",
        "typing-inspection",
    }  # fmt: skip


def test_the_base_install_encodes_and_validates_a_record(bare: Path) -> None:
    done = _run(bare / "python", "-I", "-c", EMIT_ONE.format(line=RECORD))
    assert (done.stdout, done.stderr) == ("log\n", "")


def test_the_base_install_says_its_version(bare: Path) -> None:
    done = _run(bare / "penstock", "version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("penstock ")
    assert "pyarrow            not installed" in done.stdout


@pytest.mark.parametrize(
    ("command", "extra"), [("logd", "logd"), ("collector", "collector"), ("demo", "all")]
)
def test_a_missing_extra_is_named(bare: Path, wheel: Path, command: str, extra: str) -> None:
    done = _run(bare / "penstock", command)
    assert done.returncode == 69
    assert f"pip install '{wheel}[{extra}]'" in done.stderr


@pytest.mark.parametrize("module", ["penstock.logd.client", "penstock.logd.publisher"])
def test_a_library_for_programs_names_its_extra(bare: Path, wheel: Path, module: str) -> None:
    done = _run(bare / "python", "-I", "-c", f"import {module}")
    assert done.returncode == 1
    assert f"pip install '{wheel}[logd]'" in done.stderr
