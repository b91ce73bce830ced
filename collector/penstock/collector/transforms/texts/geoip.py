"""GeoIP: an address becomes the place and the network that a database knows of it.

The database is the user's, in MaxMind's format: City, Country, ASN, of MaxMind or of others. It is
read into memory when the collector starts or reloads its configuration, so that replacing the file
changes nothing of a running collector.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

import structlog
from pydantic import Field
from typing_extensions import override

from penstock.collector.limits import MIB
from penstock.collector.transforms.expressions.paths import getter, parse_path
from penstock.collector.transforms.texts.field_parser import (
    FieldSettings,
    require_extra,
    with_attributes,
)
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    ReadablePath,
    SettingsError,
    Transform,
    TransformContext,
    Verdict,
    failed,
)
from penstock.service import FilePath

_DATABASE_BYTES_MAX: Final = 1024 * MIB
_CHARACTERS_MAX: Final = 64
"""Characters of a text that is looked up; an address has 45 at most, and may have a zone."""
_UNREADABLE: Final[dict[str, Any]] = {}
"""Facts of an address whose entry is damaged."""
_CACHED_MAX: Final = 10_000
"""Addresses whose facts are cached; the one not asked for longest is forgotten."""
_PARTS: Final[Mapping[str, tuple[str | int, ...]]] = {
    "geo.continent.code": ("continent", "code"),
    "geo.country.iso_code": ("country", "iso_code"),
    "geo.country.name": ("country", "names", "en"),
    "geo.region.iso_code": ("subdivisions", 0, "iso_code"),
    "geo.region.name": ("subdivisions", 0, "names", "en"),
    "geo.locality.name": ("city", "names", "en"),
    "geo.postal_code": ("postal", "code"),
    "geo.location.lat": ("location", "latitude"),
    "geo.location.lon": ("location", "longitude"),
    "geo.timezone": ("location", "time_zone"),
    "as.number": ("autonomous_system_number",),
    "as.organization.name": ("autonomous_system_organization",),
}
"""Attributes, and where a database has their values."""


_log = structlog.get_logger()


class GeoIpSettings(FieldSettings):
    """An address becomes the place and the network that a database knows of it."""

    type: Literal["geoip"]
    field: ReadablePath = "attributes.client.address"
    database: FilePath = Field(description="in MaxMind's format (.mmdb), of yours")


class GeoIp(Transform):
    """Looks addresses up.

    Args:
        database: Open database.
        settings: Field with the address, and where the facts go.

    Attributes:
        edition: Kind and age of the database, which tell two of them apart.
    """

    settings = GeoIpSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        require_extra("geoip", "maxminddb", context)
        where = f"transforms.{context.name}.database"
        return cls(_open(settings.database, where), settings)

    def __init__(self, database: Any, settings: GeoIpSettings) -> None:
        metadata = database.metadata()
        self.edition = [metadata.database_type, metadata.build_epoch, metadata.node_count]
        self._database = database
        self._address = getter(parse_path(settings.field))
        self._prefix = settings.prefix
        self._on_failure = settings.on_failure
        self._cache: OrderedDict[str, dict[str, Any] | None] = OrderedDict()
        self._notes = Counter[str]()
        self._damaged = _damage()
        self._path = settings.database

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        address = self._address(event.fields)
        facts = self._facts(address) if address.__class__ is str else None
        if facts is None:
            return failed(self._on_failure, "field is not an IP address")
        if not facts and facts is not _UNREADABLE:
            self._notes["addresses_unknown"] += 1
        event.fields = with_attributes(event.fields, facts, self._prefix)
        return PASS

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes

    def _facts(self, address: str) -> dict[str, Any] | None:
        """The facts of an address, empty where none are known; None: it is no address."""
        if len(address) > _CHARACTERS_MAX:
            return None
        if address in self._cache:
            self._cache.move_to_end(address)
            return self._cache[address]
        try:
            entry = self._database.get(address.strip())
        except self._damaged as error:
            self._say_damaged(error)
            return _UNREADABLE
        except ValueError:  # no address, or one of IPv6 in a database of IPv4
            facts = None
        else:
            found = {name: _part(entry, path) for name, path in _PARTS.items()}
            facts = {name: value for name, value in found.items() if value is not None}
        self._cache[address] = facts
        if len(self._cache) > _CACHED_MAX:
            self._cache.popitem(last=False)
        return facts

    def _say_damaged(self, error: Exception) -> None:
        """Count an entry that cannot be read, and name the database once; the record is kept."""
        if not self._notes["database_damaged"]:
            _log.warning("geoip_database_damaged", path=str(self._path), error=str(error))
        self._notes["database_damaged"] += 1


def _damage() -> tuple[type[Exception], ...]:
    """The errors of a lookup in a database that is damaged."""
    import maxminddb

    return (maxminddb.InvalidDatabaseError, UnicodeDecodeError)


def _open(path: Path, key: str) -> Any:
    """A database in memory.

    Raises:
        SettingsError: It cannot be read, or is none.
    """
    import maxminddb

    try:
        if (size := path.stat().st_size) > _DATABASE_BYTES_MAX:
            msg = f"{key}: {path} has {size} bytes; {_DATABASE_BYTES_MAX} are allowed"
            raise SettingsError(msg)
        return maxminddb.open_database(path, maxminddb.MODE_MEMORY)
    except (OSError, maxminddb.InvalidDatabaseError) as error:
        raise SettingsError(f"{key}: {path} cannot be read: {error}") from None


def _part(entry: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        if isinstance(entry, dict):
            entry = entry.get(key)
        elif isinstance(entry, list) and isinstance(key, int) and key < len(entry):
            entry = entry[key]
        else:
            return None
    return entry if isinstance(entry, (str, int, float)) else None
