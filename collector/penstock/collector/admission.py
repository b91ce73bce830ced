"""What treats sensitive values in records that were admitted, as configured."""

from pathlib import Path

from penstock.collector.config import SensitiveSection
from penstock.service import ConfigError
from penstock.specs.detectors import DETECTORS, Detectors
from penstock.specs.errors import SpecError
from penstock.specs.scrub import Scrubber
from penstock.specs.sensitive import HashKey


def scrubber_of(section: SensitiveSection) -> Scrubber | None:
    """What treats records, as configured; None when nothing does.

    Raises:
        ConfigError: The file of the hash key cannot be read, or holds none.
    """
    if not section.enabled:
        return None
    key = HashKey.parse(section.hash_key.get_secret_value()) if section.hash_key else None
    if section.hash_key_file is not None:
        key = _read_key(section.hash_key_file)
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


def _read_key(path: Path) -> HashKey:
    try:
        return HashKey.parse(path.read_text().strip())
    except (OSError, UnicodeDecodeError, SpecError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"sensitive.hash_key_file: {path}: {why}",
            fix="write id:secret into it, with a secret of 16 characters or more",
        ) from None
