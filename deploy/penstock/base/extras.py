"""The extra that brings a library which is not installed, and how to install it here.

An extra is a group of optional dependencies of the package (PEP 508). Penstock is not on the public
package index: an extra is installed from where this Penstock came from, a checkout or a wheel,
which pip has written down beside it (PEP 610, `direct_url.json`).
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Final

_PACKAGE: Final = "penstock"

_DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "fluent": "fluent-logger",
    "google": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "jwt": "pyjwt",
    "nats": "nats-py",
    "nkeys": "nats-py",
    "opentelemetry": "opentelemetry-sdk",
    "py4j": "pyspark",
    "re2": "google-re2",
    "yaml": "pyyaml",
}
"""Distributions by the module that they bring, where the names differ by more than `-` and `_`."""


class MissingExtraError(ImportError):
    """A module of Penstock needs a library that is not installed.

    Attributes:
        module: The library's module.
        extra: The extra of Penstock that brings it.
        fix: The command that installs it.
    """

    def __init__(self, module: str | None, extra: str) -> None:
        self.module, self.extra, self.fix = module, extra, install_command(extra)
        super().__init__(f"{module} is not installed; install it with: {self.fix}", name=module)


def require(extra: str, *modules: str) -> None:
    """Check that libraries are installed.

    Args:
        extra: Extra that has the libraries.
        modules: Top-level modules of the libraries.

    Raises:
        MissingExtraError: One is not.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)


def install_command(extra: str) -> str:
    """The command that installs an extra from where this Penstock was installed from."""
    return f"pip install '{_origin()}[{extra}]'"


def extra_of(module: str, *, part: str = "all") -> str:
    """The extra that brings a module.

    Args:
        module: Its name, as in `google_crc32c` or `opentelemetry.sdk`.
        part: The extra to prefer, where that brings the module.

    Returns:
        `part`, or the smallest extra that does; `all` where none does.
    """
    root = module.partition(".")[0]
    wanted = _normalized(_DISTRIBUTIONS.get(root, root))
    holders = {extra: names for extra, names in _requirements().items() if wanted in names}
    if part in holders:
        return part
    return min(holders, key=lambda extra: (len(holders[extra]), extra), default="all")


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def _origin() -> str:
    from importlib import metadata  # here and below: an app that imports the specs need not wait
    from urllib.parse import unquote, urlsplit

    try:
        written = metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # a source tree on the path
        return _PACKAGE
    if written is None:
        return _PACKAGE
    url = urlsplit(str(json.loads(written)["url"]))
    return unquote(url.path) if url.scheme == "file" else f"{_PACKAGE} @ {url.geturl()}"


@cache
def _requirements() -> Mapping[str, frozenset[str]]:
    """The distributions of each extra; the build has put those of extras within extras in place."""
    from importlib import metadata

    found: dict[str, set[str]] = {}
    try:
        lines = metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        lines = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if name is not None and extra is not None and extra[1] != "dev":
            found.setdefault(extra[1], set()).add(_normalized(name[0]))
    return {extra: frozenset(names) for extra, names in found.items()}
