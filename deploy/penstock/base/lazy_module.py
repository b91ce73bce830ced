"""A module that is imported when something of it is used for the first time."""

from importlib import import_module
from types import ModuleType

from typing_extensions import override


class LazyModule(ModuleType):
    """Stands for a module that a process may never need and that takes long to import.

    Type checkers are shown the module itself:

        if TYPE_CHECKING:
            import pyarrow.compute as pc
        else:
            pc = LazyModule("pyarrow.compute")

    `importlib.util.LazyLoader` does the same, but two threads at once may see half a module before
    Python 3.12.3 (https://github.com/python/cpython/issues/114763).
    """

    @override
    def __getattr__(self, name: str) -> object:
        """An attribute of the module, which is found here from now on.

        Raises:
            ImportError: The module cannot be imported.
        """
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value
