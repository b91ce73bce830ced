"""Facts about the container that writes a file, as resource attributes of the file's records."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

FILES_KNOWN_MAX: Final = 4096
"""Files whose facts are kept; the one that was not asked for longest is forgotten."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Resource attributes of a file's records.

    Attributes:
        is_whole: Whether they have what the file's container or pod is known to be; else they have
            only what its path says.
    """

    attributes: Mapping[str, Any]
    is_whole: bool = True


class ContainerFacts(Protocol):
    """Knows the containers of one kind of runtime."""

    def facts(self, path: str) -> FileFacts | None:
        """Return what is known of a file; None while it is being asked for."""
        ...

    async def run(self) -> None:
        """Ask until cancelled."""
        ...


NOTHING: Final = FileFacts({})
"""Facts of a file that is of no container."""


def service_of(facts: Mapping[str, Any], path: str) -> str:
    """Return the container's name; the file's where it is of none."""
    name = facts.get("k8s.container.name") or facts.get("container.name")
    return str(name or Path(path).stem)
