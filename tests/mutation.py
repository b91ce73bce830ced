"""`make mutate MODULE=...`: change code in small ways, and print the changes that no test sees.

    python -m tests.mutation [MODULE...] [--sample N] [--seed N] [--tests FILE...] [--report FILE]

Without a module it goes through every module of the import contract `cores-are-pure`. A mutant that
survives is equivalent to the code as it is, or a test is missing: docs/mutation.md has the last
round and tells how each was judged.

A round collects the tests that import the module, directly or through other files of `tests/`, and
`--tests` before them. It runs each once to learn which lines of the module it runs. Each mutant is
a fork of this process: the code of the changed function is swapped in memory, and the tests that
run the changed line follow, the quickest first, until one fails. No file changes, and a mutant
costs no start of Python. For the same reason a program that a test starts does not see the mutant.

mutmut 3.8 and cosmic-ray 8.7 were tried. mutmut tests a copy of the tree; with five homes of one
namespace package Python imports the code from the first tree, where nothing is mutated. cosmic-ray
changes the files in place, starts pytest for each mutant, and has no operator that takes out a
statement, such as the one that resets a backoff.
"""

import argparse
import ast
import gc
import json
import os
import random
import re
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parent.parent
IMPORT = re.compile(
    r"^ *(?:from (penstock[\w.]*|tests[\w.]*) import (\([^)]*\)|.*)|import (penstock[\w.]*))",
    re.MULTILINE,
)
NAME = re.compile(r"(\w+)(?: as \w+)?")
HOMES = ("specs", "collector", "logd", "router", "deploy")
KINDS = ("unit", "raft", "sim")
"""Folders of `tests/` that a round takes its tests from."""

SAMPLE = 25
FILES = 12
"""So many files of tests are taken for a module, the nearest ones."""

SEEDS = 3
"""Seeds of each simulation: enough to run its lines."""

SLOW = 5
"""A mutant is killed when its tests take so many times as long as they did, and `SPARE_S` more."""

SPARE_S = 5.0
TESTS_S = 20.0
"""So many CPU seconds for each module tests run, to learn which lines each of them runs."""

TESTS_MAX_S = 10.0
"""Of the tests that run a changed line, the quickest are taken until they take so long in all."""

MEMORY_MAX_BYTES = 6 << 30
Function = ast.FunctionDef | ast.AsyncFunctionDef

ALWAYS = (
    ast.If, ast.While, ast.AugAssign, ast.Delete, ast.Continue, ast.Break, ast.BoolOp, ast.IfExp,
)  # fmt: skip
KEPT = (ast.Assert, ast.Raise, ast.Import, ast.ImportFrom)
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: what it says, the lines a test must run to see it, and the changed tree."""

    lines: range
    what: str
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class Run:
    """A test's time and the lines that it ran, by file."""

    seconds: float
    lines: Mapping[str, frozenset[int]]


# Mutants ---------------------------------------------------------------------------------------


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its functions."""
    count = sum(1 for _ in _sites(ast.parse(source)))
    return [_mutant(source, number) for number in range(count)]


def _mutant(source: str, number: int) -> Mutant:
    tree = ast.parse(source)
    statement, node = list(_sites(tree))[number]
    before = _short(node)
    lines = _lines(statement, node)
    _change(node)
    after = "removed" if isinstance(node, ast.Pass) else _short(node)
    return Mutant(lines, f"{node.lineno}: {before} -> {after}", tree)


def _lines(statement: ast.stmt, node: ast.stmt | ast.expr) -> range:
    """Lines of which one runs whenever the node does."""
    match statement, node:
        case (
            ast.Match() | ast.Try() | ast.For() | ast.AsyncFor() | ast.With() | ast.AsyncWith(),
            _,
        ):
            first, last = node.lineno, node.end_lineno
        case (ast.If(test=test) | ast.While(test=test), _):
            first, last = statement.lineno, test.end_lineno
        case _:
            first, last = statement.lineno, statement.end_lineno
    return range(first, (last or first) + 1)


def _short(node: ast.AST) -> str:
    text = ast.unparse(node.test if isinstance(node, ast.If | ast.While) else node)
    return " ".join(text.split())[:100]


def _sites(tree: ast.Module) -> Iterator[tuple[ast.stmt, ast.stmt | ast.expr]]:
    """What can be changed, with the statement that it stands in."""
    for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
        for statement in _statements(function.body):
            yield from ((statement, node) for node in _changeable(statement))


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Statements, those in their blocks too, without those of functions and classes in them."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            continue
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _statements(ast.iter_child_nodes(node))


def _changeable(statement: ast.stmt) -> Iterator[ast.stmt | ast.expr]:
    if isinstance(statement, KEPT) or ast.unparse(statement).startswith("assert_never("):
        return
    if _is_changeable(statement):
        yield statement
    yield from filter(_is_changeable, _expressions(statement))


def _is_changeable(node: ast.stmt | ast.expr) -> bool:
    match node:
        case ast.Compare(ops=[comparison]):
            return type(comparison) in COMPARISONS
        case ast.BinOp(op=arithmetic):
            return type(arithmetic) in ARITHMETIC
        case ast.Expr(value=value):
            return isinstance(value, ast.Call | ast.Await)
        case ast.Assign(targets=[target]):
            return isinstance(target, ast.Attribute | ast.Subscript)
        case ast.Constant(value=value):
            return isinstance(value, int)
        case _:
            negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
            return negated or isinstance(node, ALWAYS)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a statement, without those of statements in it, of patterns and texts."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.match_case):
            if child.guard is not None:
                yield child.guard
                yield from _expressions(child.guard)
        elif isinstance(child, ast.withitem | ast.comprehension | ast.keyword):
            yield from _expressions(child)
        elif isinstance(child, ast.expr) and not isinstance(child, ast.JoinedStr):
            yield child
            yield from _expressions(child)


def _change(node: ast.stmt | ast.expr) -> None:
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        case ast.Compare():
            node.ops = [COMPARISONS[type(node.ops[0])]()]
        case ast.BinOp():
            node.op = ARITHMETIC[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.operand = ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node.operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.stmt():
            node.__class__ = ast.Pass  # in place: what holds it stays as it is
        case _:
            raise AssertionError(ast.unparse(node))


class Module:
    """A module that this process has imported: its functions can be given a mutant's code."""

    def __init__(self, path: Path) -> None:
        self.path, self.source = str(path), path.read_text()
        self.sites = sum(1 for _ in _sites(ast.parse(self.source)))
        self._codes = _codes(compile(self.source, self.path, "exec"))
        self._functions = [
            one
            for one in gc.get_objects()
            if isinstance(one, FunctionType) and one.__code__.co_filename == self.path
        ]

    def swap(self, mutant: Mutant) -> bool:
        """Give the functions the mutant's code; False if there was none to give it to."""
        new = _codes(compile(ast.fix_missing_locations(mutant.tree), self.path, "exec"))
        swapped = False
        for function in self._functions:
            key = _key(function.__code__)
            code = new.get(key)
            if code is None or len(code.co_freevars) != len(function.__code__.co_freevars):
                continue
            function.__code__ = code
            swapped |= code != self._codes[key]
        return swapped


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    found = {_key(code): code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _codes(constant)
    return found


# Which tests -----------------------------------------------------------------------------------


def pure_modules() -> list[str]:
    """Modules of the contract `cores-are-pure`."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found = [one for one in contracts["contracts"] if one["id"] == "cores-are-pure"]
    return sorted(found[0]["source_modules"])


def path_of(module: str) -> Path:
    place = Path(*module.split("."))
    homes = (ROOT / home / place for home in HOMES)
    file = next(path for path in homes if path.is_dir() or path.with_suffix(".py").exists())
    return file / "__init__.py" if file.is_dir() else file.with_suffix(".py")


def importing(module: str) -> list[Path]:
    """Files of tests that import the module, directly or through others, simulations last.

    The others are files of `tests/` and modules of the product that import it directly. Files that
    import it directly come first; of these, those whose name or folder is like its own, and then
    those that import little beside it.
    """
    files = {_name(path): path for path in (ROOT / "tests").rglob("*.py")}
    imported = {name: _imported(path) for name, path in files.items()}
    package, _, leaf = module.rpartition(".")
    facade = path_of(package).read_text() if path_of(package).exists() else ""
    distances = dict.fromkeys((module, *_exported(facade, leaf, package)), 0)
    for path in (path for home in HOMES for path in (ROOT / home / "penstock").rglob("*.py")):
        if module in _imported(path) and path.name != "__init__.py":
            distances[".".join(path.relative_to(ROOT).with_suffix("").parts[1:])] = 1
    size = 0
    while size < len(distances):
        size = len(distances)
        for name, found in imported.items():
            if name not in distances and (near := found & distances.keys()):
                distances[name] = 1 + min(distances[other] for other in near)

    def kind(path: Path) -> str:
        return path.relative_to(ROOT / "tests").parts[0]

    words = set(module.split(".")[2:])

    def is_named(path: Path) -> bool:
        return not words.isdisjoint((*path.stem.split("_"), path.parent.name))

    def breadth(name: str) -> int:
        return len({other for other in imported[name] if other.startswith("penstock.")})

    ranked = sorted(
        (
            kind(path) == "sim",
            distances[name],
            not is_named(path),
            breadth(name),
            path,
        )
        for name, path in files.items()
        if name in distances and path.name.startswith("test_") and kind(path) in KINDS
    )
    return [path for *_, path in ranked]


def _exported(facade: str, leaf: str, package: str) -> Iterator[str]:
    """Names of the module that its package has too."""
    for node in ast.parse(facade).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == leaf:
            yield from (f"{package}.{name.name}" for name in node.names)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def _imported(path: Path) -> set[str]:
    """Modules and names of modules that a file imports; by its text, which is quick to search."""
    found = set[str]()
    for module, names, plain in IMPORT.findall(path.read_text()):
        found |= {plain or module, *(f"{module}.{name}" for name in NAME.findall(names) if module)}
    return found


# The round -------------------------------------------------------------------------------------


class Round:
    """A plug-in of pytest: instead of the tests, it runs mutants of the modules against them."""

    def __init__(self, modules: Mapping[str, list[Path]], options: argparse.Namespace) -> None:
        self._modules, self._options = modules, options
        self._paths = {module: str(path_of(module)) for module in modules}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        queues = [
            [item for item in session.items if item.path in set(files)]
            for files in self._modules.values()
        ]
        runs = _runs(queues, set(self._paths.values()), self._options.budget)
        self._code = {module: Module(Path(path)) for module, path in self._paths.items()}
        gc.freeze()  # forks share what they do not write to
        for module in self._modules:
            self._run(module, items, runs)
        return True

    def _run(self, module: str, items: Mapping[str, pytest.Item], runs: Mapping[str, Run]) -> None:
        path, options, code = self._paths[module], self._options, self._code[module]
        rng = random.Random(f"{module}:{options.seed}")
        chosen = sorted(rng.sample(range(code.sites), min(options.sample, code.sites)))
        survivors = list[str]()
        begun = time.monotonic()  # noqa: TID251 - how long a person waited
        for number in chosen:
            mutant = _mutant(code.source, number)
            tests = _tests_of(mutant, path, runs)
            end = _end(mutant, code, [items[name] for name in tests], runs)
            if end != "killed":
                survivors.append(f"{mutant.what}  [{end}]")
        took_s = time.monotonic() - begun  # noqa: TID251 - how long a person waited
        count = len(chosen)
        tests_run = sum(path in run.lines for run in runs.values())
        _say(
            f"{module}: {count - len(survivors)} of {count} mutants killed, of {code.sites} that"
            f" can be made; {tests_run} tests, {took_s:.0f} s\n"
        )
        for line in survivors:
            _say(f"  {os.path.relpath(path, ROOT)}:{line}\n")
        if options.report is not None:
            row = {
                "module": module, "sites": code.sites, "mutants": count, "survivors": survivors,
                "tests": tests_run, "seconds": round(took_s, 1),
            }  # fmt: skip
            with options.report.open("a") as file:
                file.write(json.dumps(row) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _tests_of(mutant: Mutant, path: str, runs: Mapping[str, Run]) -> list[str]:
    """Tests that run one of its lines, the quickest first."""
    lines = set(mutant.lines)
    found = [name for name, run in runs.items() if lines & run.lines.get(path, set())]
    taken, left_s = list[str](), TESTS_MAX_S
    for name in sorted(found, key=lambda name: runs[name].seconds):
        left_s -= runs[name].seconds
        if left_s > 0 or not taken:
            taken.append(name)
    return taken


def _end(
    mutant: Mutant, code: Module, tests: Sequence[pytest.Item], runs: Mapping[str, Run]
) -> str:
    """`killed`, or how the mutant survived."""
    if not tests:
        return "no test runs it"

    def child() -> str:
        if not code.swap(mutant):
            return "nothing to swap"
        for number, item in enumerate(tests):
            following = tests[number + 1] if number + 1 < len(tests) else None
            reports = runtestprotocol(item, log=False, nextitem=following)
            if any(report.failed for report in reports):
                return "killed"
        return f"{len(tests)} tests"

    limit_s = SPARE_S + SLOW * sum(runs[item.nodeid].seconds for item in tests)
    answer = _forked(child, limit_s)
    return str(json.loads(answer)) if answer else "killed"  # it died, or never ended


def _runs(
    queues: Iterable[Sequence[pytest.Item]], paths: set[str], budget_s: float
) -> dict[str, Run]:
    """What each test runs of the files, without tests that fail before anything is changed.

    Each queue gets its CPU seconds.
    """

    def child() -> dict[str, tuple[bool, float, dict[str, list[int]]]]:
        found: dict[str, tuple[bool, float, dict[str, list[int]]]] = {}
        for queue in queues:
            end_s = time.process_time() + budget_s
            for item in queue:
                if item.nodeid not in found and time.process_time() < end_s:
                    found[item.nodeid] = once(item)
        return found

    def once(item: pytest.Item) -> tuple[bool, float, dict[str, list[int]]]:
        begun = time.monotonic()  # noqa: TID251 - how long a test takes
        with _tracing(paths) as lines:
            reports = runtestprotocol(item, log=False, nextitem=None)
        took_s = time.monotonic() - begun  # noqa: TID251 - how long a test takes
        good = all(report.passed for report in reports)
        return good, took_s, {path: sorted(ran) for path, ran in lines.items()}

    answer = _forked(child, 3600)
    if not answer:
        raise pytest.UsageError("the tests end the process that runs them")
    runs = json.loads(answer)
    _say(f"{len(runs)} tests were run once\n")
    for name, (good, _, lines) in runs.items():
        if not good and lines:
            _say(f"  left out, fails or is skipped by itself: {name}\n")
    return {
        name: Run(took_s, {path: frozenset(ran) for path, ran in lines.items()})
        for name, (good, took_s, lines) in runs.items()
        if good and lines
    }


@contextmanager
def _tracing(paths: set[str]) -> Iterator[dict[str, set[int]]]:
    """Collect the lines of the files that run, in every thread."""
    lines: dict[str, set[int]] = {}

    def local(frame: FrameType, _event: str, _arg: Any) -> Any:
        lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return local

    def begin(frame: FrameType, _event: str, _arg: Any) -> Any:
        return local if frame.f_code.co_filename in paths else None

    threading.settrace(begin)
    sys.settrace(begin)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)


def _forked(work: Any, limit_s: float) -> str:
    """JSON of what `work` returns in a fork of this process; empty if it dies or takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)
        for stream in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
        answer = ""
        try:
            answer = json.dumps(work())
        finally:
            with os.fdopen(writer, "w") as file:
                file.write(answer)
            os._exit(0)
    os.close(writer)
    chunks = list[bytes]()
    end = time.monotonic() + limit_s  # noqa: TID251 - the deadline of a process
    while (left_s := end - time.monotonic()) > 0:  # noqa: TID251 - the deadline of a process
        if not select.select([reader], [], [], left_s)[0]:
            break
        if not (chunk := os.read(reader, 1 << 16)):
            break
        chunks.append(chunk)
    os.close(reader)
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return b"".join(chunks).decode()


def main(arguments: Sequence[str]) -> int:
    """Go through the modules, one process each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="draws other mutants")
    parser.add_argument(
        "--budget", type=float, default=TESTS_S, metavar="S", help="CPU seconds of tests"
    )
    parser.add_argument("--files", type=int, default=FILES, help="files of tests, the nearest")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="files beside")
    parser.add_argument("--report", type=Path, help="append a line of JSON for each module")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    os.environ.setdefault("PENSTOCK_SIM_SEEDS", str(SEEDS))
    modules = options.modules or pure_modules()
    named = [Path(name).resolve() for name in options.tests]
    found = {module: [*named, *importing(module)[: options.files]] for module in modules}
    for module in (module for module, files in found.items() if not files):
        sys.stderr.write(f"{module}: no test imports it\n")
    files = dict.fromkeys(map(str, chain(*found.values())))
    flags = ["-q", "-s", "-p", "no:randomly", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as directory:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = directory
        flags.append(f"--basetemp={directory}/tests")
        return int(pytest.main([*flags, *files], [Round(found, options)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
