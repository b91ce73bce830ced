"""The documents say what exists: commands, configuration keys, verbs, links."""

import importlib
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from penstock.collector.registry import SOURCES, TRANSFORMS
from penstock.deploy.cli import PARTS, cli
from penstock.logd.config import LogdConfig
from penstock.router.sinks.registry import sink_kinds
from penstock.router.spark.frame_sink import FrameSinkOptions
from penstock.service import load_config

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "*/README.md", "examples/**/README.md")
    for path in ROOT.glob(pattern)
)
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
COMMANDS = (ROOT / "docs" / "COMMANDS.md").read_text()
DAEMONS = {
    "collector": ("penstock.collector.config", "CollectorConfig"),
    "deploy": ("penstock.deploy.console.config", "ConsoleConfig"),
    "logd": ("penstock.logd.config", "LogdConfig"),
    "router": ("penstock.router.job.config", "JobConfig"),
}


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


ALL_COMMANDS = [" ".join(("penstock", *path)) for path in _commands(cli)]


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert f"`{command}" in COMMANDS


def test_documented_commands_exist() -> None:
    named = set(re.findall(r"`(penstock(?: [a-z][a-z-]*)+)", COMMANDS))
    known = {"penstock", *ALL_COMMANDS}
    unknown = {name for name in named if name not in known}
    assert {name for name in unknown if _without_argument(name) not in known} == set()


def _without_argument(name: str) -> str:
    """`penstock logd tail logs` names a stream at its end."""
    return name.rpartition(" ")[0]


def _named(command: str) -> click.Command:
    found: click.Command = cli
    for name in command.split()[1:]:
        assert isinstance(found, click.Group)
        child = found.get_command(click.Context(found), name)
        assert child is not None
        found = child
    return found


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    found = _named(command)
    assert found.get_short_help_str(200)
    if isinstance(found, click.Group):
        told = found.get_help(click.Context(found)).splitlines()[1:]
        assert [line for line in told if line.endswith("...")] == []
    assert "penstock" in (found.epilog or ""), f"{command}: no example"
    assert "\\b" not in (found.epilog or ""), f"{command}: a backslash too many before the example"


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_help_explains_every_option_and_breaks_no_example(command: str) -> None:
    """An example that goes over the end of a line cannot be copied."""
    found = _named(command)
    options = [one for one in found.params if isinstance(one, click.Option) and not one.hidden]
    assert [one.opts for one in options if not one.help] == []
    told = {line.strip() for line in found.get_help(click.Context(found)).splitlines()}
    examples = (found.epilog or "").replace("\b", "").splitlines()
    assert [line for line in examples if line.strip() and line.strip() not in told] == []


def test_make_targets_named_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (path.name, target)
        for path in DOCUMENTS
        for target in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", path.read_text(), re.MULTILINE)
    }
    assert named
    assert {(name, target) for name, target in named if target not in targets} == set()


def test_the_reference_says_what_the_code_says() -> None:
    """In a process of its own, for click remembers how a command was called before."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.reference", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"run: make reference\n{done.stdout}{done.stderr}"


def test_what_guarantees_name_as_proof_are_tests() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "guarantees.md").read_text())
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def _keys(model: type[BaseModel]) -> Iterator[str]:
    """Every key of a configuration model and of the models inside it."""
    schema = model.model_json_schema()
    for node in (schema, *schema.get("$defs", {}).values()):
        yield from node.get("properties", {})


@pytest.mark.parametrize("home", DAEMONS)
def test_every_configuration_key_is_documented(home: str) -> None:
    module, name = DAEMONS[home]
    model: Any = getattr(importlib.import_module(module), name)
    pages = (ROOT / home / "README.md", *(ROOT / "docs" / home).rglob("*.md"))
    text = "".join(path.read_text() for path in pages)
    missing = [key for key in _keys(model) if not re.search(rf"\b{re.escape(key)}\b", text)]
    assert missing == []


def _patterns(schema: object, *, worded: bool = False) -> Iterator[tuple[str, bool]]:
    """Patterns in a schema of pydantic's; True: the error has words in the pattern's place."""
    match schema:
        case {"type": "str", "pattern": str(pattern)}:
            yield pattern, worded
        case dict():
            for part in schema.values():
                yield from _patterns(part, worded=schema.get("type") == "custom-error")
        case list() | tuple():
            for part in schema:
                yield from _patterns(part)
        case _:
            pass


def test_no_error_of_a_configuration_shows_a_pattern() -> None:
    """A person is told in words which texts are right: `penstock.service.config_types.Form`."""
    models: list[type[BaseModel]] = [
        FrameSinkOptions,
        *(getattr(importlib.import_module(module), name) for module, name in DAEMONS.values()),
        *(kind.settings for registry in (SOURCES, TRANSFORMS) for kind in registry.kinds()),
        *(kind.config for kind in sink_kinds()),
    ]
    found: dict[str, bool] = {}
    for model in models:
        model.model_rebuild()  # those that are built when they are used have no schema before
        for pattern, worded in _patterns(model.__pydantic_core_schema__):
            found[pattern] = worded and found.get(pattern, True)
    assert r"^[A-Za-z0-9_-]{1,64}$" in found, "patterns are looked for where they are"
    assert [pattern for pattern, worded in found.items() if not worded] == []


def _links() -> Iterator[tuple[Path, str]]:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if not re.match(r"[a-z]+:", target):
                yield path, target


def test_links_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path, target in _links()
        if not (path.parent / target.partition("#")[0]).exists()
        or not _has_anchor(path.parent / target.partition("#")[0], target.partition("#")[2], path)
    ]
    assert broken == []


def _has_anchor(file: Path, anchor: str, origin: Path) -> bool:
    if not anchor:
        return True
    text = (origin if file == origin.parent else file).read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return anchor in {
        re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings
    }


def test_files_that_the_architecture_names_exist() -> None:
    """Each stands in backticks: from the root, or below what the nearest `Below` names."""
    base, missing = ROOT, []
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if below := re.match(r"Below `([^`]+)`:|(## )", line):
            base = ROOT / (below[1] or "")
        names = re.findall(r"`([\w./-]+)`", line)
        folders = [base, ROOT, *(ROOT / it for it in names if "/" in it)]
        missing += [
            name
            for name in names
            if name.endswith((".py", "/"))
            and not any((it / name).exists() for at in folders for it in (at, at.parent))
        ]
    assert missing == []


def test_the_parts_are_the_homes() -> None:
    assert set(PARTS) == {"specs", "collector", "logd", "router"}


def test_readme_shows_the_two_commands_first() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r"^ {4}(make [a-z]+)", readme, re.MULTILINE)
    assert [shlex.split(command)[1] for command in shown[:2]] == ["demo", "test"]


def test_one_version_is_named_everywhere() -> None:
    """In the package, the changelog, the tags of images and what the command says."""
    version = metadata.version("penstock")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", CHANGELOG, re.MULTILINE)
    compose = (ROOT / "deploy" / "compose.yaml").read_text()
    kubernetes = (ROOT / "deploy" / "k8s" / "kustomization.yaml").read_text()
    tags = re.findall(r"PENSTOCK_VERSION:-([\d.]+)", compose)
    tags += re.findall(r"newTag: ([\d.]+)", kubernetes)
    said = CliRunner().invoke(cli, ["--version"], prog_name="penstock").output
    assert {released[0], *tags} == {version}
    assert said == f"penstock {version}\n"


def test_a_release_has_as_many_entries_as_a_reader_reads() -> None:
    assert "\n## [Unreleased]\n" in CHANGELOG
    for release in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[2:]:
        assert 0 < len(re.findall(r"^- ", release, re.MULTILINE)) <= 60, release[:40]


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "cluster").glob("*.yaml")), ids=str)
def test_the_nodes_of_the_example_are_configurations(path: Path) -> None:
    config = load_config(LogdConfig, path, env_prefix="PENSTOCK_EXAMPLE")
    assert config.cluster is not None
    assert path.stem in config.cluster.initial_members


_FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^(?:    from penstock import specs\n)(?:    .*\n)+", re.MULTILINE)
_STATEMENT = re.compile(
    r"^    (?:from \S+ import |import \w|(?:async )?(?:with|for|def) .*:$|\w+ = \w+[.(])",
    re.MULTILINE,
)
_RUN = "import sys\nfor part in sys.stdin.read().split(chr(0)): exec(part, globals())"


SPECS_PAGES = [
    f"docs/specs/{name}.md" for name in ("emitting", "records", "sensitive-data", "versions")
]


@pytest.mark.parametrize("document", ["README.md", "specs/README.md", *SPECS_PAGES])
def test_the_python_in_a_document_runs_as_it_is_written(document: str, tmp_path: Path) -> None:
    """One program after the other, as a reader has them; no collector is needed."""
    text = (ROOT / document).read_text()
    programs = _FENCED.findall(text) + [textwrap.dedent(it) for it in _INDENTED.findall(text)]
    assert programs
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input="\0".join(programs),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_document_with_python_is_run_by_a_test() -> None:
    """A fence with a file's name is a walkthrough's (`tests/live/test_docs_walkthroughs.py`).

    Those of docs/logd run in `tests/live/test_logd_groups.py`, of the router's pages, which
    are indented, in `tests/live/test_router_source.py`.
    """
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in DOCUMENTS}
    fenced = {name for name, text in texts.items() if _FENCED.search(text)}
    assert fenced == {"specs/README.md", *SPECS_PAGES, "docs/logd/reading.md"}
    outside = {name: re.sub(r"^```.*?^```$", "", it, flags=re.DOTALL | re.MULTILINE)
               for name, it in texts.items()}  # fmt: skip
    indented = {name for name, text in outside.items() if _STATEMENT.search(text)}
    assert indented == {"README.md", "docs/router/data-source.md"}
