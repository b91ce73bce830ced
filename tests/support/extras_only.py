"""Run every command as in an environment that has certain extras of Penstock and no others.

    python -m tests.support.extras_only DIRECTORY EXTRA...

What the extras do not bring cannot be imported here, which is told from the metadata of what is
installed. Each command runs with arguments that lead nowhere, below DIRECTORY: a server that does
not answer, files that are not there. One line of JSON for each command says how it ended.
"""

import io
import json
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from typing_extensions import override

NO_SERVER = "127.0.0.1:9"
COMMAND_S = 20


class Without(MetaPathFinder):
    """What another finder finds, without the libraries that are not there."""

    def __init__(self, finder: Any, missing: set[str]) -> None:
        self._finder, self._missing = finder, missing

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self._missing:
            return None
        found: ModuleSpec | None = self._finder.find_spec(fullname, path, target)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)  # importlib.metadata asks for find_distributions


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_of(extras: Sequence[str]) -> set[str]:
    """Everything that pip would install for these extras of Penstock."""
    found: set[str] = set()
    waiting = [("penstock", frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        found.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # another platform's
        for line in lines:
            requirement, _, marker = line.partition(";")
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
            match = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?", requirement)
            assert match is not None
            if (extra is None or extra[1] in wanted) and normalized(match[1]) not in found:
                more = frozenset(filter(None, (match[2] or "").split(",")))
                waiting.append((normalized(match[1]), more))
    return found


def forbid_all_but(extras: Sequence[str], *, brought: Sequence[str] = ()) -> None:
    """From now on nothing else can be imported.

    Args:
        extras: Of Penstock.
        brought: Distributions that are there for another reason.
    """
    there = distributions_of(extras) | {"pip", "setuptools", *brought}
    missing = {
        module
        for module, names in metadata.packages_distributions().items()
        if not {normalized(name) for name in names} & there
    } - {"tests"}
    forbid(missing)


def forbid(missing: set[str]) -> None:
    """From now on these top-level modules cannot be imported, as where nobody installed them."""
    for name in list(sys.modules):
        if name.partition(".")[0] in missing:
            del sys.modules[name]
    sys.meta_path[:] = [Without(finder, missing) for finder in sys.meta_path]


def main(directory: Path, extras: Sequence[str]) -> None:
    forbid_all_but(extras)
    signal.signal(signal.SIGALRM, _hangs)
    file = directory / "file"
    file.touch()
    sys.prefix = str(file)  # commands that write into the environment cannot
    import click

    from penstock.deploy.cli import cli

    for path in _paths(cli):
        for arguments in ([*path, "--help"], [*path, *_arguments(cli, path, file, click)]):
            sys.stdout.write(json.dumps(_run(cli, arguments)) + "\n")


def _hangs(*_: object) -> NoReturn:
    raise TimeoutError("the command does not end")


def _paths(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    import click

    assert isinstance(group, click.Group)
    context = click.Context(group)
    for name in group.list_commands(context):
        try:
            command = group.get_command(context, name)
        except Exception:  # noqa: BLE001 - a part that is not here; running it says why
            yield (*path, name)
            continue
        if isinstance(command, click.Group) and not command.invoke_without_command:
            yield from _paths(command, (*path, name))
        else:
            yield (*path, name)
            if isinstance(command, click.Group):
                yield from _paths(command, (*path, name))


def _arguments(cli: object, path: Sequence[str], file: Path, click: ModuleType) -> list[str]:
    """What a command needs to get past its usage, all of it leading nowhere."""
    command = cli
    for name in path:
        try:
            command = command.get_command(click.Context(command), name)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - as above
            return []
    given: list[str] = []
    nowhere = str(file / "nowhere")
    for parameter in command.params:  # type: ignore[attr-defined]
        value = {"path": nowhere, "file": nowhere, "filename": nowhere, "integer": "1"}.get(
            parameter.type.name, "x"
        )
        if isinstance(parameter.type, click.Choice):
            value = str(next(iter(parameter.type.choices)))
        match parameter.name:
            case "server":
                given += [parameter.opts[0], NO_SERVER]
            case "config" | "configs" | "data_dir" | "directory" | "nats_url":
                where = "nats://" + NO_SERVER if parameter.name == "nats_url" else nowhere
                given += [parameter.opts[0], where] if parameter.opts[0][:1] == "-" else [where]
            case _ if "--out" in parameter.opts:  # else it is written where this runs
                given += [parameter.opts[0], f"{nowhere}.tar.gz"]
            case "seconds" | "timeout" | "timeout_s":
                given += [parameter.opts[0], "1"]
            case _ if parameter.required:
                option = isinstance(parameter, click.Option)
                given += [parameter.opts[0], value] if option else [value]
            case _:
                pass
    return given


def _run(cli: object, arguments: Sequence[str]) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    signal.alarm(COMMAND_S)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main(list(arguments), prog_name="penstock")  # type: ignore[attr-defined]
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:  # noqa: BLE001 - the test is told
            code = repr(error)
        finally:
            signal.alarm(0)
    return {"command": " ".join(arguments), "code": code, "stderr": err.getvalue()[-2000:]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
