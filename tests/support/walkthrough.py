"""Documents whose commands are run as a reader would type them, and whose shown output is compared.

A document is read from top to bottom:

- A fenced block of the language `console` holds commands, each behind `$ ` (`> ` goes on with it),
  and what they print. `…` stands for anything in a line, a line that is only `…` for any lines. A
  command without output may print anything. `[exit 65]` as the last line is its exit code; else it
  is 0.
- A fenced block with a file's name behind the language, as in `yaml shop.yaml`, is that file.
- A command that ends with ` &` runs until the end of the document; it is what a reader would have
  running in another terminal.

Every document has a directory and a network of its own, so the default ports are free. One shell
carries out the whole of it: variables and directories stay as a reader's would.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import IO, Final, Self

import pytest

_FENCE = re.compile(r"^```(\w*) ?(\S*)$")
_EXIT = re.compile(r"^\[exit (\d+)\]$")
_DONE: Final = "walkthrough-done"
_STOP_S: Final = 120
_LOOPBACK_UP: Final = (
    "import fcntl, socket, struct; "
    'fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))'
)
"""SIOCSIFFLAGS with IFF_UP, netdevice(7): a new network's loopback interface is down."""


@dataclass(frozen=True, slots=True)
class File:
    """What a reader is told to put into a file."""

    name: str
    text: str


@dataclass(slots=True)
class Command:
    """What a reader is told to type, and is shown.

    Attributes:
        line: Of the document, for messages.
        text: As it is typed, lines of a continuation included.
        output: Lines that it prints; none: whatever it likes.
        exit_code: That it ends with.
    """

    line: int
    text: str
    output: list[str] = field(default_factory=list)
    exit_code: int = 0


def read_document(text: str) -> list[File | Command]:
    """The files and commands of a document, in order."""
    steps: list[File | Command] = []
    lines = enumerate(text.splitlines(), start=1)
    for _, line in lines:
        if fence := _FENCE.match(line):
            language, name = fence.groups()
            block = _until_fence(lines)
            if language == "console":
                steps += _commands(block)
            elif name:
                steps.append(File(name, "".join(f"{one}\n" for _, one in block)))
    return steps


def _until_fence(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    block: list[tuple[int, str]] = []
    for number, line in lines:
        if line == "```":
            return block
        block.append((number, line))
    raise ValueError("a fenced block does not end")


def _commands(block: Sequence[tuple[int, str]]) -> list[Command]:
    commands: list[Command] = []
    for number, line in block:
        if line.startswith("$ "):
            commands.append(Command(number, line.removeprefix("$ ")))
        elif not commands:
            raise ValueError(f"line {number}: output before a command")
        elif line.startswith("> ") and not commands[-1].output:
            commands[-1].text += "\n" + line.removeprefix("> ")
        elif found := _EXIT.match(line):
            commands[-1].exit_code = int(found[1])
        else:
            commands[-1].output.append(line)
    return commands


def matches(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether a document may show this for what was printed."""
    parts = [
        r"(?:[^\n]*\n)*"
        if line == "…"
        else ".*".join(map(re.escape, line.rstrip().split("…"))) + r"\n"
        for line in shown
    ]
    text = "".join(f"{line.rstrip()}\n" for line in printed)
    return re.fullmatch("".join(parts), text) is not None


class Reader:
    """Carries out a document in a shell with a network of its own.

    Args:
        directory: Where it works.
        environment: Of the shell.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._shell = subprocess.Popen(
            [*_own_network(), "bash", "--noprofile", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._network = ""

    def __enter__(self) -> Self:
        self._run(Command(0, f"{sys.executable} -c '{_LOOPBACK_UP}'"), _STOP_S)
        self._network = _network_of(self._shell.pid)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop what still runs, and wait for it; kill what is left in the shell's network."""
        with suppress(BrokenPipeError):  # it was killed, for it took too long
            self._type("kill $(jobs -p) 2>/dev/null; wait; exit")
        try:
            self._shell.communicate(timeout=_STOP_S)
        finally:
            for pid in _processes_in(self._network):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def follow(self, step: File | Command, within_s: float) -> None:
        """Do what the document says next.

        Raises:
            AssertionError: It went otherwise than the document says.
        """
        if isinstance(step, File):
            path = self._directory / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
            return
        printed, exit_code = self._run(step, within_s)
        told = f"line {step.line}: $ {step.text}\n" + "\n".join(printed) + self._in_background()
        assert exit_code == step.exit_code, f"exit {exit_code}, not {step.exit_code}, of {told}"
        if step.output:
            assert matches(step.output, printed), f"not what is shown, of {told}"

    def _in_background(self) -> str:
        """What the commands that still run have printed last."""
        logs = sorted(self._directory.glob("background-*.log"))
        return "".join(f"\n--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def _run(self, command: Command, within_s: float) -> tuple[list[str], int]:
        watch = Timer(within_s, os.killpg, (self._shell.pid, signal.SIGKILL))
        watch.start()
        try:
            text = command.text
            if text.endswith(" &"):
                text = f"{text.removesuffix(' &')} >background-{command.line}.log 2>&1 &"
            self._type(f"{{ {text}\n}} </dev/null; _code=$?; echo; echo {_DONE} $_code")
            lines: list[str] = []
            for line in self._pipe(self._shell.stdout):
                if line.startswith(_DONE):
                    return _without_last_empty(lines), int(line.split()[1])
                lines.append(line.rstrip("\n"))
        finally:
            watch.cancel()
        raise AssertionError(
            f"line {command.line}: not within {within_s} s: {command.text}\n" + "\n".join(lines)
        )

    def _type(self, text: str) -> None:
        pipe = self._pipe(self._shell.stdin)
        pipe.write(text + "\n")
        pipe.flush()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def _without_last_empty(lines: list[str]) -> list[str]:
    """Without the line end that keeps the mark of the end apart from output without one."""
    return lines[:-1] if lines and not lines[-1] else lines


def _network_of(pid: int) -> str:
    """What names a process's network; empty when it is gone, or somebody else's."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _processes_in(network: str) -> list[int]:
    mine = _network_of(os.getpid())
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if network not in ("", mine) and _network_of(pid) == network]


def _own_network() -> list[str]:
    """A command that starts another one where only loopback is, and nobody else."""
    as_somebody = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", "--net", *as_somebody, "--"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network of one's own can be had here: {tried.stderr.strip()}")
    return command
