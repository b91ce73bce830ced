"""Exit codes and messages that every command shares."""

import errno
import os
import subprocess
import sys
from typing import Any

import click
import pytest
import structlog

import penstock.service
from penstock.base.errors import exit_on_error
from penstock.service import ConfigError, UnavailableError
from penstock.service.cli import FloatRange, IntRange, PenstockGroup


@click.group(cls=PenstockGroup)
def cli() -> None:
    """A command."""


@cli.command()
@click.option("--what", required=True)
def fail(what: str) -> None:
    """Fails as told."""
    errors: dict[str, Exception] = {
        "config": ConfigError("a.yaml: x: wrong", fix="correct it"),
        "unavailable": UnavailableError("no server", fix="start it"),
        "abort": click.Abort(),
        "disk": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/full"),
        "bug": ZeroDivisionError("division"),
        "memory": MemoryError(),
        "memory of a task": ExceptionGroup("tasks", [MemoryError()]),
    }
    if what in errors:
        raise errors[what]


def _exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli(list(arguments), prog_name="penstock")
    return caught.value.code


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("fail", "--what", "nothing"), 0),
        (("--help",), 0),
        (("fail",), 64),
        (("fail", "--what", "bug"), 70),
        (("fail", "--what", "memory"), 71),
        (("fail", "--what", "disk"), 74),
        (("fail", "--what", "memory of a task"), 71),
        (("nonsense",), 64),
        (("fail", "--what", "unavailable"), 69),
        (("fail", "--what", "config"), 78),
        (("fail", "--what", "abort"), 1),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int) -> None:
    assert _exit_code(*arguments) == code


def test_a_service_error_says_reason_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    _exit_code("fail", "--what", "config")
    assert capsys.readouterr().err == "error: a.yaml: x: wrong\n  fix: correct it\n"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("bug", "this is a bug in Penstock"),
        ("disk", "/dev/full: No space left on device"),
        ("memory", "out of memory; give the process more, or lower the limits it is set to"),
    ],
)
def test_a_daemon_logs_why_it_failed(what: str, reason: str) -> None:
    with structlog.testing.capture_logs() as logs:
        _exit_code("fail", "--what", what)
    structlog.reset_defaults()
    assert [(it["event"], it["reason"], it["exc_info"]) for it in logs] == [
        ("process_failed", reason, True)
    ]


def test_an_unforeseen_error_is_one_line_and_debug_prints_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    structlog.reset_defaults()  # a daemon of another test may have configured it
    assert _exit_code("fail", "--what", "bug") == 70
    message, fix = capsys.readouterr().err.splitlines()
    assert message == "error: ZeroDivisionError: division"
    assert fix.endswith("penstock --debug fail --what bug")
    assert _exit_code("--debug", "fail", "--what", "bug") == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert _exit_code("fail", "--what", "bug") == 70
    assert "Traceback" not in capsys.readouterr().err, "one command does not debug the next"


def test_a_usage_error_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    _exit_code("fail")
    assert "--what" in capsys.readouterr().err


def test_an_error_out_of_a_task_group_is_unwrapped() -> None:
    wrapped = ExceptionGroup("tasks", [ExceptionGroup("more", [ConfigError("x", fix="y")])])
    with pytest.raises(SystemExit) as caught, exit_on_error():
        raise wrapped
    assert caught.value.code == 78


def test_a_bug_beside_a_service_error_is_not_hidden() -> None:
    wrapped = ExceptionGroup("tasks", [ConfigError("x", fix="y"), KeyError("bug")])
    with pytest.raises(ExceptionGroup), exit_on_error():
        raise wrapped


def test_help_is_printed_without_what_only_a_daemon_needs() -> None:
    code = (
        "import sys; from penstock.deploy.main import main; sys.argv = ['penstock', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*{'asyncio', 'pydantic', 'structlog', 'grpc', 'pyarrow'} & {*sys.modules},"
        " file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "COMMAND" in run.stdout
    assert run.stderr.strip() == ""


@pytest.mark.parametrize("name", penstock.service.__all__)
def test_each_name_of_the_service_package_is_found(name: str) -> None:
    assert getattr(penstock.service, name) is not None


@pytest.mark.parametrize(("reader_leaves", "code"), [(True, 0), (False, 74)])
def test_a_reader_that_leaves_ends_a_command_without_an_error(
    *, reader_leaves: bool, code: int
) -> None:
    """`... | head` goes away early. A connection that breaks has the same name, and is an error."""
    then = "click.echo(1)" if reader_leaves else "raise BrokenPipeError(32, 'Broken pipe')"
    program = (
        "import click\n"
        "from penstock.service.cli import PenstockGroup\n"
        "@click.group(cls=PenstockGroup)\n"
        "def cli(): pass\n"
        "@cli.command()\n"
        "def fail():\n"
        "    input()\n"
        f"    {then}\n"
        "cli(['fail'])\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if reader_leaves:
            process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        said = process.stderr.read().decode()
        assert process.wait() == code
    assert said == (
        "" if reader_leaves else "error: Broken pipe\n  fix: see to that file, disk or connection\n"
    )


def test_a_question_that_is_not_answered_with_yes_says_that_nothing_was_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _exit_code("fail", "--what", "abort") == 1
    said = capsys.readouterr().err.strip()
    assert said == "nothing was changed: the question was not answered with y"


@pytest.mark.parametrize(("kind", "name"), [(IntRange(1, 5), "integer"), (FloatRange(0), "number")])
def test_a_number_that_is_none_is_said_to_be_no_number_and_not_no_range(
    kind: click.ParamType[Any], name: str
) -> None:
    with pytest.raises(click.BadParameter, match=f"'x' is not a valid {name}"):
        kind.convert("x", None, None)
