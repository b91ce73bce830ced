"""Every test surely asserts something: no test passes because a loop was empty or an `if` false.

Sure is what runs whenever the test runs: not the body of an `if` without an `else`, nor of a loop
over what may be empty, nor what follows an early return. Constants and ranges are taken to be
filled. A property may assert of some of its examples only.

A call of a plain function counts when a function of that name in `tests/` surely asserts, and a
method when it is of a class that the test makes; not a context manager or a server's method, since
what these assert is most often that the server has started. A test that only shows that nothing is
raised compares what the call returns, or stands in `with does_not_raise()`; a property that names
the errors that may be raised shows for each example that there is no other.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef

ASSERTING = {"asyncio.timeout", "asyncio.wait_for", "does_not_raise", "expect"}
ASSERTING |= {"pytest.fail", "pytest.raises", "pytest.warns"}
ASSERTED = re.compile(r"(contextlib\.)?suppress\(|pytest\.raises\(")
WAITING = {"wait_until", "wait_until_async", "wait_for_status", "wait_for_reasons"}
"""They fail when a deadline passes before what they wait for is so."""


@pytest.mark.timeout(600)  # 18 s of CPU time, on a machine that may be busy
def test_every_test_surely_asserts() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}
    asserting = _asserting(trees)
    found = [
        f"{path.relative_to(TESTS.parent)}:{test.lineno}: {test.name}"
        for path, tree in trees.items()
        if path.name.startswith("test_")
        for test in _functions(tree)
        if test.name.startswith("test_")
        and not _is_property(test)
        and not Sure(asserting, tree, test).asserts(test.body)
    ]
    assert found == [], "assert something that no `if`, empty loop or return can skip"


@pytest.mark.parametrize(
    ("body", "sure"),
    [
        ("assert x", True),
        ("for x in found: assert x", False),
        ("for x in (1, 2): assert x", True),
        ("for x in range(3): assert x", True),
        ("for x in range(n): assert x", True),
        ("for x in ITEMS: assert x", True),
        ("for x in NOTHING: assert x", False),
        ("assert found\nfor x in found: assert x", True),
        ("if x: assert x", False),
        ("if x: assert x\nelse: assert y", True),
        ("if x: return\nassert x", False),
        ("for x in found:\n  if x: return\nassert x", False),
        ("if x:\n  assert y\n  return\nassert z", True),
        ("for x in found:\n  if x: return\npytest.fail('not found')", True),
        ("with pytest.raises(ValueError): f()", True),
        ("with suppress(ValueError): assert x", False),
        ("with server() as s: assert s", True),
        ("try: assert x\nfinally: f()", True),
        ("try: f()\nexcept ValueError: assert x", False),
        ("helper()", True),
        ("other()", False),
        ("async def main(): assert x\nasyncio.run(main())", True),
        ("async def main(): assert x\nrun(main)", True),
        ("async def main(): assert x", False),
        ("mock.assert_called_once()", True),
        ("while True:\n  assert x", True),
        ("while x:\n  assert x", False),
    ],
)
def test_what_may_be_skipped_does_not_count(body: str, sure: bool) -> None:
    lines = "\n".join(f"  {line}" for line in body.splitlines())
    tree = ast.parse(f"ITEMS = [1]\nNOTHING = []\ndef test_it():\n{lines}\n")
    test = next(f for f in _functions(tree) if f.name == "test_it")
    assert Sure({"helper"}, tree, test).asserts(test.body) is sure


class Sure:
    """Whether statements surely assert.

    Args:
        asserting: Names of functions that do.
        module: Where the statements stand: its constants are known.
        function: Whose statements they are: functions and instances made in it are known.
        owner: The class whose method it is.
    """

    def __init__(
        self, asserting: set[str], module: ast.Module, function: Function, owner: str = ""
    ) -> None:
        self._asserting, self._class = asserting, owner
        self._made = {
            target.id: node.value.func.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        assigned = [
            (target.id, _is_filled(node.value, target.id))
            for node in (*module.body, *ast.walk(function))
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        ]
        self._filled = {name for name, filled in assigned if filled}
        self._empty = {name for name, filled in assigned if not filled}
        inner = [node for node in _functions(function) if node is not function]
        self._inner = {node.name: node for node in inner}
        self._entered: set[str] = set()

    def asserts(self, body: list[ast.stmt]) -> bool:
        """Whether one of the statements surely asserts."""
        if body and ast.unparse(body[-1]).startswith("pytest.fail("):
            return True  # what returned before has found what it looked for
        for node in body:
            if self._statement(node):
                return True
            if not self._asserts_before_it_returns(node):
                return False
        return False

    def _asserts_before_it_returns(self, node: ast.stmt) -> bool:
        """Whether a test that ends in it has asserted."""
        if not _may_return(node):
            return True
        return isinstance(node, ast.If) and all(
            self.asserts(branch) or all(map(self._asserts_before_it_returns, branch))
            for branch in (node.body, node.orelse)
        )

    def _statement(self, node: ast.stmt) -> bool:  # noqa: C901, PLR0911, PLR0912 - a case each
        match node:
            case ast.Assert():
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return False
            case ast.If():
                return self.asserts(node.body) and self.asserts(node.orelse)
            case ast.For() | ast.AsyncFor():
                return self._call(node.iter) or (
                    self._runs(node.iter) and self.asserts(node.body)
                ) or self.asserts(node.orelse)  # fmt: skip
            case ast.While():
                forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
                return forever and self.asserts(node.body)
            case ast.With() | ast.AsyncWith():
                items = [item.context_expr for item in node.items]
                if any(map(self._call, items)):
                    return True
                hidden = any("suppress(" in ast.unparse(item) for item in items)
                return not hidden and self.asserts(node.body)
            case ast.Try(handlers=handlers) if any(map(_is_failure, handlers)):
                return True
            case ast.Try():
                return any(map(self.asserts, (node.body, node.orelse, node.finalbody)))
            case ast.Match():
                return all(self.asserts(case.body) for case in node.cases)
            case _:
                return self._call(node)

    def _runs(self, items: ast.expr) -> bool:
        """Whether a loop over it runs once at least."""
        if isinstance(items, ast.Call):
            name = ast.unparse(items.func)
            if name in {"enumerate", "reversed", "sorted", "list"} and items.args:
                return self._runs(items.args[0])
            if name in {"zip", "product", "itertools.product"} and items.args:
                return all(map(self._runs, items.args))
            if name.endswith((".items", ".values", ".keys")):
                return isinstance(items.func, ast.Attribute) and self._runs(items.func.value)
        if isinstance(items, ast.Name | ast.Attribute):
            name = ast.unparse(items).rpartition(".")[2]
            return name in self._filled or (name.isupper() and name not in self._empty)
        if isinstance(items, ast.Subscript):
            return self._runs(items.value)
        return _is_filled(items)

    def _name(self, called: ast.expr) -> str:
        """A function's name; `Class.method` of an instance that the function has made."""
        if isinstance(called, ast.Attribute):
            match called.value:
                case ast.Call(func=ast.Name(id=made)):
                    return f"{made}.{called.attr}"
                case ast.Name(id=name) if name in self._made:
                    return f"{self._made[name]}.{called.attr}"
                case ast.Name(id="self") if self._class:
                    return f"{self._class}.{called.attr}"
        return ast.unparse(called)

    def _call(self, node: ast.AST) -> bool:
        """Whether what is called in an expression surely asserts."""
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            name = self._name(call.func)
            if name.rpartition(".")[2] in WAITING or name in ASSERTING | self._asserting:
                return True
            if ".assert_" in name:
                return True
            named = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
            for part in named:
                if isinstance(part, ast.Name) and part.id in self._inner.keys() - self._entered:
                    self._entered.add(part.id)
                    sure = self.asserts(self._inner[part.id].body)
                    self._entered.discard(part.id)
                    if sure:
                        return True
        return False


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _is_filled(items: ast.expr | None, name: str = "") -> bool:
    """Whether it holds something; a constant that is computed is believed to."""
    match items:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(
                not isinstance(part, ast.Starred) or ast.unparse(part.value).isupper()
                for part in parts
            )
        case ast.Dict(keys=keys):
            return any(key is not None for key in keys)
        case ast.Constant(value=str() | bytes() as text):
            return bool(text)
        case ast.Call(func=ast.Name(id="range")):
            return True
        case _:
            return name.isupper() and items is not None


def _is_failure(handler: ast.ExceptHandler) -> bool:
    """Whether an error that is caught fails the test."""
    text = ast.unparse(handler)
    return "pytest.fail(" in text or "raise AssertionError" in text


def _may_return(node: ast.AST) -> bool:
    """Whether a test may end in it, before what follows."""
    if isinstance(node, Function | ast.ClassDef):
        return False
    inner = [part for part in ast.iter_child_nodes(node) if not isinstance(part, Function)]
    return isinstance(node, ast.Return) or any(
        _may_return(part)
        for part in inner
        if isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case)
    )


def _asserting(trees: Mapping[Path, ast.Module]) -> set[str]:
    """Names of functions and methods in `tests/` that surely assert; methods as `Class.method`."""
    known: set[str] = set()
    functions = [
        (name, Sure(known, tree, function, owner), function.body)
        for path, tree in trees.items()
        for owner, function in _owned(tree)
        for name in [f"{owner}.{function.name}" if owner else function.name]
        if not function.name.startswith("test_")
        and not function.decorator_list
        and not (owner and path.is_relative_to(TESTS / "support"))
    ]
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    while True:
        more = {name for name, sure, body in functions if name not in known and sure.asserts(body)}
        more |= {
            f"{heir}.{method}"
            for heir, parents in bases.items()
            for owner, _, method in (name.partition(".") for name in known | more)
            if owner in parents and method
        }
        if more <= known:
            return known
        known |= more


def _owned(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions with the name of the class that holds them, or none."""
    for node in ast.walk(tree):
        for part in ast.iter_child_nodes(node):
            if isinstance(part, Function):
                yield (node.name if isinstance(node, ast.ClassDef) else ""), part


def _is_property(test: Function) -> bool:
    """Whether it asserts of examples, or names the errors that they may raise, and no others."""
    given = any(ast.unparse(part).startswith("given(") for part in test.decorator_list)
    return given and any(
        isinstance(node, ast.Assert | ast.Try)
        or (isinstance(node, ast.Call) and ASSERTED.match(ast.unparse(node)))
        for node in ast.walk(test)
    )
