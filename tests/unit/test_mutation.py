"""Which changes `make mutate` makes, and to what."""

import importlib
from pathlib import Path

import pytest

from tests import mutation


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("return a < 1", ["a < 1 -> a <= 1", "1 -> 2"]),
        ("return a is None", ["a is None -> a is not None"]),
        ("return a + b", ["a + b -> a - b"]),
        ("return a and b", ["a and b -> a or b"]),
        ("return not a", ["not a -> not not a"]),
        ("return b if a else c", ["b if a else c -> b if not a else c"]),
        ("return True", ["True -> False"]),
        ("if a:\n  return b", ["a -> not a"]),
        ("while a:\n  break", ["a -> not a", "break -> removed"]),
        ("a.reset()", ["a.reset() -> removed"]),
        ("a.b = c", ["a.b = c -> removed"]),
        ("a += b", ["a += b -> removed"]),
        ("match a:\n  case 1 if b == c: return d", ["b == c -> b != c"]),
        ("return [b for b in a if b > c]", ["b > c -> b >= c"]),
        ("def inner():\n  return a > b\nreturn inner", ["a > b -> a >= b"]),
        ("a = b", []),
        ("assert a > 1", []),
        ("raise ValueError(1)", []),
        ("return f'{a + b}'", []),
    ],
)
def test_what_is_changed(body: str, changes: list[str]) -> None:
    lines = "".join(f"  {line}\n" for line in body.splitlines())
    found = mutation.mutants(f"LIMIT = 1\ndef f(a, b, c, d):\n{lines}")
    assert [one.what.partition(": ")[2] for one in found] == changes


SOURCE = """
def outer(a):
    def inner(b):
        return a < b
    return inner

class Counter:
    count = 0
    @property
    def next(self):
        self.count += 1
        return self.count
"""


def test_functions_that_exist_already_run_the_code_of_the_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "module_for_mutants.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module("module_for_mutants")
    inner, counter = made.outer(1), made.Counter()
    assert (inner(1), counter.next) == (False, 1)
    code = mutation.Module(path)
    found = {one.what.partition(": ")[2]: one for one in mutation.mutants(SOURCE)}
    assert code.swap(found["a < b -> a <= b"])
    assert (inner(1), counter.next) == (True, 2)
    assert code.swap(found["self.count += 1 -> removed"])
    assert (made.outer(1)(1), counter.next) == (False, 2), "one change at a time"
    assert path.read_text() == SOURCE


def test_tests_that_import_a_module_through_others_come_after_those_that_import_it() -> None:
    files = mutation.importing("penstock.router.delivery.breaker")
    assert files[0].name == "test_router_breaker.py"
    assert files[-1].parent.name == "sim"
