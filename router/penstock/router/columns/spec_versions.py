"""Decision of the source on a record by the version of its spec, made once for each version.

The driver looks up which specs are known; the executors' processes get that as data, and import the
modules with the upcasters only when a record needs one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from penstock.router.errors import BadOptionError

_MAJOR_DIGITS_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class SpecVersions:
    """The known specs.

    Attributes:
        majors: Known major versions by name of spec, rising.
        upcast: Name and major version of those from which there is a way to the newest.
        modules: Modules of the upcasters.
    """

    majors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    upcast: frozenset[tuple[str, int]] = frozenset()
    modules: tuple[str, ...] = ()

    def verdict(self, schema: str | None) -> str | None:
        """Return how records of a schema id are treated.

        Returns:
            None: unchanged; they are of the newest version, or their spec is unknown. Empty: they
                are
            upcast to the newest version. Otherwise the reason why they cannot be understood.
        """
        name, major = _parts(schema)
        known = self.majors.get(name)
        if known is None or major == known[-1]:
            return None
        if (name, major) in self.upcast:
            return ""
        if major in known:
            return None
        if major > known[-1]:
            return f"{schema}: a newer major version than {known[-1]}, the newest that is known"
        return f"{schema}: a major version that is not known and has no upcaster"

    def newest(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record as the newest known major version of its spec.

        Raises:
            ValueError: Its upcaster refuses it.
        """
        from penstock.specs.errors import SpecError
        from penstock.specs.versions.upcast import upcast_record

        for module in self.modules:
            import_module(module)
        name, _ = _parts(record["schema"])
        try:
            return upcast_record(record, self.majors[name][-1])
        except SpecError as error:
            raise ValueError(f"{record['schema']}: {error}") from None


def known_versions(modules: Sequence[str] = ()) -> SpecVersions:
    """The specs that are known here, those of some modules and of installed packages among them.

    Raises:
        BadOptionError: A module cannot be imported.
    """
    from penstock.specs.models.envelope import newest_minors, specs
    from penstock.specs.models.kinds import GROUP, discover
    from penstock.specs.versions.upcast import has_upcaster

    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise BadOptionError(f"option specs: {module} cannot be imported: {error}") from None
    discover()
    majors: dict[str, tuple[int, ...]] = {}
    upcast: set[tuple[str, int]] = set()
    for name in {schema.partition("/")[0] for schema in specs()}:
        known = majors[name] = tuple(newest_minors(name))
        for major in range(known[-1]):
            if all(has_upcaster(name, step) for step in range(major, known[-1])):
                upcast.add((name, major))
    return SpecVersions(majors, frozenset(upcast), (*modules, *_installed(GROUP)))


def _installed(group: str) -> tuple[str, ...]:
    from importlib.metadata import entry_points

    return tuple(sorted(entry.module for entry in entry_points(group=group)))


def _parts(schema: str | None) -> tuple[str, int]:
    """Name and major version; of what is no schema id, no name."""
    name, _, version = (schema or "").partition("/")
    major = version.partition(".")[0]
    known = len(major) <= _MAJOR_DIGITS_MAX and major.isascii() and major.isdigit()
    return (name, int(major)) if known else ("", 0)
