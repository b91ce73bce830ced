"""What treats sensitive values in records that were admitted, as configured."""

from penstock.collector.config import SensitiveSection
from penstock.specs.detectors import DETECTORS, Detectors
from penstock.specs.scrub import Scrubber
from penstock.specs.sensitive import HashKey


def scrubber_of(section: SensitiveSection) -> Scrubber | None:
    """What treats records, as configured; None when nothing does."""
    if not section.enabled:
        return None
    key = HashKey.parse(section.hash_key.get_secret_value()) if section.hash_key else None
    detectors = Detectors(
        frozenset(name for name in DETECTORS if section.detectors.get(name, True)),
        frozenset(section.except_.fields),
        tuple(section.except_.patterns),
        section.mode,
    )
    return Scrubber(
        key,
        keyless=section.without_key,
        values=section.search,
        actions=section.actions,
        detectors=detectors,
    )
