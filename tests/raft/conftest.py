"""The option that rewrites the cases."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-cases", action="store_true", help="write what commands print now")
