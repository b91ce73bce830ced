"""A database of addresses as users have it, with two networks."""

from pathlib import Path

from mmdb_writer import MMDBWriter
from netaddr import IPSet

SHOWN = "/usr/share/GeoIP/GeoLite2-City.mmdb"
"""The path that documents show."""


def city_database(directory: Path) -> Path:
    """Write the database into a directory."""
    writer = MMDBWriter(6, "GeoLite2-City", languages=["en"], ipv4_compatible=True)
    writer.insert_network(
        IPSet(["203.0.113.0/24"]),
        {
            "continent": {"code": "EU"}, "country": {"iso_code": "DE", "names": {"en": "Germany"}},
            "subdivisions": [{"iso_code": "BE", "names": {"en": "Land Berlin"}}],
            "city": {"names": {"en": "Berlin", "de": "Berlin"}}, "postal": {"code": "10115"},
            "location": {"latitude": 52.5, "longitude": 13.4, "time_zone": "Europe/Berlin"},
        },
    )  # fmt: skip
    writer.insert_network(
        IPSet(["2001:db8::/32"]),
        {"autonomous_system_number": 64500, "autonomous_system_organization": "Example"},
    )
    path = directory / "city.mmdb"
    writer.to_db_file(str(path))
    return path
