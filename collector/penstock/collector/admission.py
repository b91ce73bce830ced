"""What treats sensitive values in records that were admitted, as configured."""

from penstock.collector.config import SensitiveSection
from penstock.specs.redact.detectors import DETECTORS, Detectors
from penstock.specs.redact.scrubber import Scrubber


def scrubber_of(section: SensitiveSection) -> Scrubber | None:
    """What treats records, as configured; None when nothing does.

    Raises:
        ConfigError: The hash key cannot be read, or is none.
    """
    if not section.enabled:
        return None
    detectors = Detectors(
        frozenset(name for name in DETECTORS if section.detectors.get(name, True)),
        frozenset(section.except_.fields),
        tuple(section.except_.patterns),
        section.mode,
    )
    return Scrubber(
        section.read_hash_key(),
        keyless=section.without_key,
        values=section.search,
        actions=section.actions,
        detectors=detectors,
    )
