"""What `make test-extended` says and returns, for products that are none."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.extended import __main__ as extended
from tests.extended.product import Product, UnavailableError

TESTS = """
import os
def test_named():
    assert os.environ["PENSTOCK_TEST_NONE"] == "here"
def test_broken():
    assert False
"""


@contextmanager
def here(directory: Path) -> Iterator[Mapping[str, str]]:
    yield {"PENSTOCK_TEST_NONE": "here"}


def nowhere(directory: Path) -> NoReturn:
    raise UnavailableError("no mvn on PATH")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int]:
    """`make test-extended` with products that are none."""
    tests = tmp_path / "test_product.py"
    tests.write_text(TESTS)
    products = {
        name: Product(name, running, (str(tests),), about)
        for name, running, about in (
            ("fine", here, "named"), ("broken", here, "broken"), ("absent", nowhere, "named"),
            ("empty", here, "nothing"),
        )
    }  # fmt: skip
    return lambda *arguments: extended.main(
        arguments, products=products, directory=tmp_path / "products"
    )


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        ("fine", 0, "fine: 1 passed, 0 failed, 0 skipped"),
        ("fine,absent", 0, "absent: cannot be had here: no mvn on PATH"),
        ("absent", 69, "absent: cannot be had here: no mvn on PATH"),
        ("broken,fine,absent", 1, "broken: 0 passed, 1 failed, 0 skipped"),
        ("empty", 1, "empty: 0 passed, 0 failed, 0 skipped"),
    ],
)
def test_what_comes_of_each_product_is_said(
    run: Callable[..., int], names: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--only", names, "-p", "no:cacheprovider") == code
    assert said in capsys.readouterr().out


def test_a_name_of_no_product_is_a_usage_error(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--only", "loki")
    assert ended.value.code == 2
    assert "loki is none of fine,broken,absent,empty" in capsys.readouterr().err
