"""A fake store of checkpoints: a dictionary that fails when it is told to."""

from typing import TYPE_CHECKING

from penstock.service import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryObjects:
    """As `penstock.router.stores.objects.Objects`; counts what was asked of it.

    Attributes:
        held: What it has.
        asked: Each request, as its method and the name.
        before: Called with each request before anything is done; what it raises ends it.
    """

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, name: None

    def create(self, name: str, data: bytes) -> bool:
        self._ask("create", name)
        if name in self.held:
            return False
        self.held[name] = data
        return True

    def put(self, name: str, data: bytes) -> None:
        self._ask("put", name)
        self.held[name] = data

    def get(self, name: str) -> bytes | None:
        self._ask("get", name)
        return self.held.get(name)

    def names(self, below: str) -> list[str]:
        self._ask("names", below)
        return sorted(name for name in self.held if name.startswith(f"{below}/"))

    def remove(self, name: str) -> None:
        self._ask("remove", name)
        self.held.pop(name, None)

    def close(self) -> None:
        pass

    def fail_after(self, count: int) -> None:
        """Of the requests from now on, that many are done; each later one fails."""
        left = iter(range(count))

        def before(method: str, name: str) -> None:
            if next(left, None) is None:
                raise UnavailableError(f"{method} {name}: the store is away", fix="wait")

        self.before = before

    def _ask(self, method: str, name: str) -> None:
        self.asked.append((method, name))
        self.before(method, name)
