"""Which extra brings a library, and how the extra is installed."""

import importlib
import re

import pytest

from penstock.base.extras import MissingExtraError, extra_of, install_command, require


@pytest.mark.parametrize(
    ("module", "part", "extra"),
    [
        ("yaml", "logd", "logd"),
        ("google_crc32c", "router", "router"),
        ("duckdb", "logd", "query"),
        ("opentelemetry.sdk", "logd", "app"),
        ("deltalake", "router", "delta"),
        ("re2", "all", "all"),
        ("click", "specs", "service"),
        ("no_such_library", "logd", "all"),
    ],
)
def test_a_library_has_an_extra(module: str, part: str, extra: str) -> None:
    assert extra_of(module, part=part) == extra


def test_every_extra_that_brings_a_module_is_one_that_pip_knows() -> None:
    known = {
        extra.partition("]")[0]
        for extra in re.findall(r"extra == '(\w+)", str(importlib.metadata.requires("penstock")))
    }
    modules = ("grpc", "nats", "structlog", "pyspark", "psycopg", "botocore", "msgpack", "rich")
    assert {extra_of(module) for module in modules} <= known


def test_a_library_that_is_missing_is_named_with_the_command_that_brings_it() -> None:
    require("logd", "json")
    with pytest.raises(MissingExtraError, match="no_such_library is not installed") as caught:
        require("logd", "json", "no_such_library")
    assert (caught.value.name, caught.value.extra) == ("no_such_library", "logd")
    assert caught.value.fix == install_command("logd")
    assert re.fullmatch(r"pip install '/.+\[logd\]'", caught.value.fix), "it is a checkout's"
