"""Rules about the tree itself; each failure names the file and what to do."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("specs", "collector", "logd", "router", "deploy")

# Built from pieces, so that this file passes its own rules.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
POSSESSIVE_GROUP = re.compile(r"[^(]\)(?:[*+?]|\{+[0-9,]+\}+)\+")
MACHINE_PATHS = re.compile("|".join((r"\.\./sha" + "red", "/wo" + "rk/", "/ro" + r"ot/\.")))


def _listed() -> list[Path]:
    """What git knows or would add: no build output, no other checkouts."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    return [path for name in names if (path := ROOT / name).is_file()]


FILES = _listed()
GENERATED = ROOT / "logd" / "penstock" / "logd" / "wire"
PYTHON = [path for path in FILES if path.suffix == ".py" and not path.is_relative_to(GENERATED)]
PRODUCT = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in HOMES]
TEXTS = [
    path
    for path in FILES
    if path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".proto"}
    or path.name in {"Makefile", "run"}
]


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_penstock_is_a_namespace_package_in_every_home() -> None:
    homes = [ROOT / home / "penstock" for home in HOMES]
    assert [home for home in homes if not home.is_dir()] == []
    assert [home for home in homes if (home / "__init__.py").exists()] == []


def test_every_home_says_what_it_is() -> None:
    assert [home for home in HOMES if not (ROOT / home / "README.md").exists()] == []


@pytest.mark.parametrize(
    "pattern", [UNFINISHED, MACHINE_PATHS], ids=["unfinished", "paths of one machine"]
)
def test_texts_hold_nothing_that_must_not_land(pattern: re.Pattern[str]) -> None:
    found = [
        f"{_relative(path)}:{number}: {line.strip()[:80]}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_no_error_is_swallowed() -> None:
    """A broad handler that does nothing hides every bug behind it."""
    found = [
        f"{_relative(path)}:{node.lineno}"
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and _is_silent(node)
    ]
    assert found == []


def _is_broad(kind: ast.expr | None) -> bool:
    return kind is None or (
        isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"}
    )


def _is_silent(handler: ast.ExceptHandler) -> bool:
    return all(
        isinstance(statement, ast.Pass | ast.Continue)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5, Debian 12's for one, finds no match then (CPython's gh-106052).

    Of a class of characters, as in `[^x]*+`, it is sound; a group can be repeated greedily.
    """
    offenders = [
        f"{_relative(path)}:{number}"
        for path in PRODUCT
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if POSSESSIVE_GROUP.search(line)
    ]
    assert offenders == [], f"take out the last `+` in {offenders}"


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    support = ROOT / "tests" / "support"
    found = [
        f"{_relative(path)}:{node.lineno}"
        for path in PYTHON
        if path.is_relative_to(ROOT / "tests") and not path.is_relative_to(support)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep"}
        and ast.unparse(node.args[0]) != "0"  # a turn of the event loop
    ]
    assert found == []


def test_package_roots_hold_only_imports() -> None:
    """`__init__.py` is a table of contents, perhaps one that is read when a name is asked for."""
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr, ast.AnnAssign)
    lazy = ("if TYPE_CHECKING:", "if not TYPE_CHECKING:", "def __getattr__(", "def __dir__(")
    found = [
        f"{_relative(path)}:{node.lineno}"
        for path in PRODUCT
        if path.name == "__init__.py"
        for node in ast.parse(path.read_text()).body
        if not isinstance(node, allowed) and not ast.unparse(node).startswith(lazy)
    ]
    assert found == []


DECISIONS = ROOT / "docs" / "decisions"
RECORDS = sorted(path for path in DECISIONS.glob("*.md") if path.name != "README.md")
NAMED_DECISION = re.compile(r"(?:[Dd]ecisions?[ /]|\[)(0\d{3})(?=\D)")


def test_decision_records_are_numbered_and_complete() -> None:
    numbers = [record.name.partition("-")[0] for record in RECORDS]
    assert [number for number in numbers if not re.fullmatch(r"\d{4}", number)] == []
    assert len(set(numbers)) == len(numbers)
    for record in RECORDS:
        text = record.read_text()
        assert text.startswith(f"# {record.name[:4]} "), record.name
        for part in ("Status:", "## Context", "## Decision", "## Consequences", "## Rejected"):
            assert part in text, f"{record.name} lacks {part}"
        assert "Revisit when" in text, record.name


def test_the_index_of_decisions_has_each_once() -> None:
    index = (DECISIONS / "README.md").read_text()
    assert sorted(re.findall(r"^- \[\d{4}\]\(([^)]+)\)", index, re.MULTILINE)) == [
        record.name for record in RECORDS
    ]


def test_decisions_that_are_named_exist() -> None:
    known = {record.name[:4] for record in RECORDS}
    found = [
        f"{_relative(path)}: {number}"
        for path in TEXTS
        for number in NAMED_DECISION.findall(path.read_text())
        if number not in known
    ]
    assert found == []


def test_generated_code_is_what_its_sources_say(tmp_path: Path) -> None:
    proto = ROOT / "logd" / "proto"
    sources = sorted(path.name for path in proto.glob("*.proto"))
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", *outputs, *sources]
    subprocess.run(command, check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    present = {path.name: path.read_text() for path in GENERATED.glob("*_pb2.py*")}
    assert present == made, "run `make proto`"


def test_no_registry_is_named() -> None:
    pattern = re.compile(r"(--(extra-)?index-url|find-links|https?://[^\s\"]*pypi)")
    names = ("pyproject.toml", "constraints.txt", "Makefile", "deploy/bootstrap.py", ".ci/run")
    assert [name for name in names if pattern.search((ROOT / name).read_text())] == []


def test_make_recipes_are_short() -> None:
    text = (ROOT / "Makefile").read_text()
    assert re.findall(r"(?:\n\t.*){4}", text) == [], "a recipe has at most three lines"


FULL_ROOTS: set[str] = set()
"""Packages that hold more than a dozen modules still."""


def test_no_package_holds_more_than_a_dozen_modules() -> None:
    modules = Counter(
        _relative(path.parent)
        for path in PRODUCT
        if path.name not in {"__init__.py", "__main__.py", "py.typed"}
    )
    full = {package for package, count in modules.items() if count > 12}
    assert full == FULL_ROOTS, "a package is a concept: divide it, or shorten the list"


def test_no_modules_import_one_another() -> None:
    """Imports for type checkers count: two modules that need each other's types are one."""
    roots = sorted(path.parent.name for path in ROOT.glob("*/penstock/*/__init__.py"))
    packages = [f"penstock.{root}" for root in roots]
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    circles = sorted(tuple(sorted(circle)) for circle in _circles(imported))
    assert circles == []


def test_a_circle_is_found() -> None:
    imported = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set[str](), "e": {"a"}}
    assert list(_circles(imported)) == [{"a", "b", "c"}]


def _circles(imported: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Modules that reach one another: those left together when everything else is ordered."""
    reached = {name: _reached(name, imported) for name in imported}
    seen: set[str] = set()
    for name in sorted(imported):
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and name not in seen:
            seen |= circle
            yield circle


def _reached(name: str, imported: Mapping[str, set[str]]) -> set[str]:
    found, left = set[str](), [name]
    while left:
        for other in imported[left.pop()] - found:
            found.add(other)
            left.append(other)
    return found


RETIRED = (
    "processor " + "time",
    "processor " + "seconds",
    r"service\." + "words",
    "cho" + "res",
    "hur" + "ry",
    "is_" + "vain",
    "examin" + "ation",
    "lay " + "aside",
    "Post" + "box",
    "Shadow" + "Disk",
    "Re" + "packer",
    "cli_" + "again",
    "cli_" + "looking",
    "write_" + "whole",
    "bring_" + "about",
    "commit" + "ters?",
    "vau" + "lts?",
    "Up" + "keep",
    "Re" + "tainer",
    "Surround" + "ings",
)
"""Words that the field has better ones for, which came in their place everywhere."""


@pytest.mark.parametrize("word", RETIRED)
def test_no_retired_word_comes_back(word: str) -> None:
    pattern = re.compile(rf"\b{word}", re.IGNORECASE)
    found = [
        f"{_relative(path)}:{number}: {line.strip()[:80]}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], "say it in the words of docs/GLOSSARY.md"


LEVELS = {
    "debug",
    "info",
    "warning",
    "warn",
    "error",
    "exception",
    "critical",
    "fatal",
    "msg",
    "log",
}
EVENT = re.compile(r"[a-z][a-z0-9_]*")
MESSAGES_FOR_PEOPLE = {ROOT / "logd/penstock/logd/publisher/connecting.py"}
"""Modules whose `_log` is a logger of the standard library."""


def test_log_events_are_stable_names() -> None:
    """`leader_elected stream=logs partition=0`: a literal to find in the code, and fields."""
    trees = {path: ast.parse(path.read_text()) for path in PRODUCT}
    loggers = {name for tree in trees.values() for name in _loggers(tree)}
    events = [
        (f"{_relative(path)}:{number}", event)
        for path in trees.keys() - MESSAGES_FOR_PEOPLE
        for number, event in _events(trees[path], loggers)
    ]
    assert len(events) > 150, "the loggers have other names now"
    odd = [at for at, event in events if event is None or not EVENT.fullmatch(event)]
    assert sorted(odd) == [], "name the event in snake_case, and put what varies into fields"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("log.info('leader_elected', epoch=7)", ["leader_elected"]),
        ("self.spool.log.error('not looked at')", ["not looked at"]),
        ("structlog.get_logger().bind(a=1).exception('failed')", ["failed"]),
        ("log.info('began' if held else 'ended')", [None]),
        ("log.error(finding.value)", [None]),
        ("log.info(f'replay_{what}')", [None]),
        ("write = log.info", [None]),
        ("layout.log('collector'), part.info('log')", []),
    ],
)
def test_the_event_of_each_log_call_is_found(code: str, found: list[str | None]) -> None:
    assert [event for _, event in _events(ast.parse(code), {"log"})] == found


def test_loggers_are_found_by_what_is_assigned_to_them() -> None:
    code = "_log = structlog.get_logger()\nself.say = structlog.get_logger().bind(a=1)\nlog = b()"
    assert set(_loggers(ast.parse(code))) == {"_log", "say"}


def _loggers(tree: ast.AST) -> Iterator[str]:
    """Names of variables and attributes that hold loggers of structlog."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and _makes_logger(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from filter(None, map(_last_name, targets))


def _makes_logger(made: ast.expr | None) -> bool:
    return isinstance(made, ast.Call) and ast.unparse(made).startswith("structlog.get_logger(")


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _events(tree: ast.AST, loggers: set[str]) -> Iterator[tuple[int, str | None]]:
    """Line and event of each use of a logger; None: the event is no literal."""
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr in LEVELS):
            continue
        if _last_name(node.value) in loggers or _makes_logger(node.value):
            call = calls.get(id(node))
            match call.args if call else []:
                case [ast.Constant(value=str(event)), *_]:
                    yield node.lineno, event
                case _:
                    yield node.lineno, None


PATCHES_MAX = 36
"""Attributes of the product or of Python that tests replace; fewer each time, never more."""

PRIVATE_MAX = 16
"""Private names of another object or module that tests read; fewer each time, never more."""

PATCH = re.compile(r"\bsetattr\(|mock\.patch|setitem\(sys\.modules")
TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Names that a named tuple has for everybody."""


@pytest.mark.parametrize("kind", ["patched", "private"])
def test_tests_replace_and_read_little_from_inside_and_say_why(kind: str) -> None:
    """It holds the names of today's files in place; give the code an input instead."""
    twins = ("_twins.py", "twins.py")
    find, most = {"patched": (_patched, PATCHES_MAX), "private": (_private, PRIVATE_MAX)}[kind]
    found = [
        (path, number, _has_reason(lines, number))
        for path in PYTHON
        if path.is_relative_to(ROOT / "tests") and not path.name.endswith(twins)
        for lines in [path.read_text().splitlines()]
        for number in find(lines)
        if path != Path(__file__)
    ]
    places = [f"{_relative(path)}:{number}" for path, number, _ in found]
    assert len(places) <= most, places
    bare = [f"{_relative(path)}:{number}" for path, number, reason in found if not reason]
    assert bare == [], "say why in a comment on the line or on the line before"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("patch.setattr(os, 'kill', kill)", False),
        ("patch.setattr(os, 'kill', kill)  # noqa: SLF001", False),
        ("patch.setattr(os, 'kill', kill)  # noqa: SLF001 - the test would end", True),
        ("patch.setattr(os, 'kill', kill)  # the test would end", True),
        ("# The test would end.\npatch.setattr(os, 'kill', kill)", True),
        ("# The test would end.\n\npatch.setattr(os, 'kill', kill)", False),
        ("# The test would end.\npatch.setattr(os, 'a', a)\npatch.setattr(os, 'b', b)", True),
    ],
)
def test_a_reason_is_a_comment_that_says_something(text: str, reason: bool) -> None:
    lines = text.splitlines()
    assert list(_patched(lines))
    assert all(_has_reason(lines, number) for number in _patched(lines)) is reason


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("log._file", 1), ("self._file", 0), ("cls._file", 0), ("super()._file()", 0),
        ("os._exit(0)", 0), ("row._replace(a=1)", 0), ("from penstock.logd import _file", 1),
        ("from tests.support import _file", 0), ("log.__class__", 0), ("a._b._c", 2),
    ],
)  # fmt: skip
def test_private_names_are_counted(text: str, count: int) -> None:
    assert len(list(_private([text]))) == count


def _patched(lines: list[str]) -> Iterator[int]:
    return (number for number, line in enumerate(lines, 1) if PATCH.search(line))


def _private(lines: list[str]) -> Iterator[int]:
    """Lines with a private name that is not the code's own; a line for each name."""
    for node in ast.walk(ast.parse("\n".join(lines))):
        match node:
            case ast.Attribute(attr=name, value=owner) if _is_private(name):
                if ast.unparse(owner) not in {"self", "cls", "super()", "os"}:
                    yield node.lineno
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("penstock"):
                yield from (node.lineno for name in names if _is_private(name.name))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in TUPLES


def _has_reason(lines: list[str], number: int) -> bool:
    """Whether a comment on the line says why, or one before it and others of its kind."""
    line = lines[number - 1]
    _, hashed, comment = line.partition("  # ")
    if hashed and re.sub(r"(type: ignore|noqa)\S*( [A-Z]+\d+)?|[\s#-]", "", comment):
        return True
    before = lines[number - 2].strip() if number > 1 else ""
    return before.startswith("# ") or (
        bool(PATCH.search(before)) and _has_reason(lines, number - 1)
    )
