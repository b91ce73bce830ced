"""The interface of a place for small objects."""

from typing import Protocol


class Objects(Protocol):
    """Small objects by name; a name has parts between slashes.

    What one call has done, every later call sees, from wherever it comes. Each method raises
    `penstock.service.ConfigError` where somebody must change something, and
    `penstock.service.UnavailableError` where it may pass; whether it was done is then not known.
    For any thread.
    """

    def create(self, name: str, data: bytes) -> bool:
        """Store an object whose name is not taken; False: it is. Of several, one succeeds."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Store an object, or another one in its place; readers see either, whole."""
        ...

    def get(self, name: str) -> bytes | None:
        """An object; None: there is none."""
        ...

    def names(self, below: str) -> list[str]:
        """The names that begin so and a slash, in their order, whole."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object that may not be there."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
