"""Imports at the start of a daemon: without rich, plugins of pydantic, Arrow's own memory pool."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from typing_extensions import override

from penstock.base.garbage import uncollected

_UNUSED: Final = ("rich",)
"""Libraries that another one imports if they are there; the launcher's tables do need them."""

_METADATA: Final = "importlib.metadata"
"""Reads what is installed, with the parser of e-mail: 4 % of what logd imports takes."""

_PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"

_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow reads it once, when it is loaded."""


@contextmanager
def daemon_imports() -> Iterator[None]:
    """Import a daemon's modules without what only adds to the time and memory of its start.

    structlog imports rich where that is installed, for tracebacks on a terminal: a daemon writes
    JSON. The first model of pydantic looks for plugins in the metadata of each installed package:
    Penstock has none, and an app's instrumentation has no place in a daemon. What would look is
    imported as something is asked of it. Garbage collections would look again and again at what
    stays until the end. Arrow allocates by malloc, unless the environment says otherwise: its own
    pool keeps 4 MiB from its first array on, and more with each thread. The processes that the
    daemon starts do likewise. What is imported is left out of collections for ever: the first one
    after the block would look at all of it, and hardly any is garbage (700 of logd's 109,000
    objects).

    What has been imported before stays. After the block all of it can be imported; modules that
    need rich cannot be imported within it.
    """
    absent = [name for name in _UNUSED if name not in sys.modules]
    metadata = None if _METADATA in sys.modules else _Metadata()
    # None in the place of a module is an ImportError of its name (The import system, 5.3.1).
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    if metadata is not None:
        sys.modules[_METADATA] = metadata
    os.environ.setdefault(_POOL, "system")
    try:
        with without_plugins(), uncollected():
            yield
            gc.freeze()
    finally:
        for name in absent:
            del sys.modules[name]
        if metadata is not None:
            metadata.make_way()


@contextmanager
def without_plugins() -> Iterator[None]:
    """Have pydantic build its models without plugins, and so without a search for them."""
    plugins = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "__all__"
    try:
        yield
    finally:
        if plugins is None:
            del os.environ[_PLUGINS]
        else:
            os.environ[_PLUGINS] = plugins


class _Metadata(ModuleType):
    """Stands for `importlib.metadata`, of which pydantic has a function that it may never call."""

    def __init__(self) -> None:
        super().__init__(_METADATA)
        self.entry_points = _entry_points

    def make_way(self) -> None:
        """Have the module itself found from now on."""
        if sys.modules.get(_METADATA) is self:
            del sys.modules[_METADATA]

    @override
    def __getattr__(self, name: str) -> object:
        """An attribute of the module itself, which takes this one's place."""
        if name == "__path__":  # asked before each name: it is a package
            raise AttributeError(name)
        self.make_way()
        return getattr(import_module(_METADATA), name)


def _entry_points(**selection: str) -> Any:
    return import_module(_METADATA).entry_points(**selection)
