"""Imports at the start of a daemon: without rich, plugins of pydantic, Arrow's own memory pool."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.base.garbage import uncollected

_UNUSED: Final = ("rich",)
"""Libraries that another one imports if they are there; the launcher's tables do need them."""

_PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"

_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow reads it once, when it is loaded."""


@contextmanager
def daemon_imports() -> Iterator[None]:
    """Import a daemon's modules without what only adds to the time and memory of its start.

    structlog imports rich where that is installed, for tracebacks on a terminal: a daemon writes
    JSON. The first model of pydantic looks for plugins in the metadata of each installed package:
    Penstock has none, and an app's instrumentation has no place in a daemon. Garbage collections
    would look again and again at what stays until the end. Arrow allocates by malloc, unless the
    environment says otherwise: its own pool keeps 4 MiB from its first array on, and more with each
    thread. The processes that the daemon starts do likewise. What is imported is left out of
    collections for ever: the first one after the block would look at all of it, and hardly any is
    garbage (700 of logd's 109,000 objects).

    What has been imported before stays. After the block all of it can be imported; modules that
    need rich cannot be imported within it.
    """
    absent = [name for name in _UNUSED if name not in sys.modules]
    # None in the place of a module is an ImportError of its name (The import system, 5.3.1).
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    os.environ.setdefault(_POOL, "system")
    try:
        with without_plugins(), uncollected():
            yield
            gc.freeze()
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def without_plugins() -> Iterator[None]:
    """Have pydantic build its models without plugins, and so without a search for them."""
    plugins = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "__all__"
    try:
        yield
    finally:
        if plugins is None:
            os.environ.pop(_PLUGINS, None)  # another thread may have done so
        else:
            os.environ[_PLUGINS] = plugins
