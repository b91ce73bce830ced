"""Sensitivity of fields, and the actions on their values before they leave.

A field says it with a marker: ``email: Annotated[str | None, Sensitive("pii")] = None``. The same
actions run where a record is emitted and again at the collector, so each leaves alone what it made:
done twice is done once.
"""

import hashlib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

from pydantic import GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from penstock.specs.errors import RefusedSpecError, SpecError
from penstock.specs.limits import HASH_KEY_BYTES_MIN, HASH_KEY_ID_CHARACTERS_MAX

Sensitivity = Literal["public", "internal", "pseudonym", "pii", "pci", "phi", "secret"]
"""Sensitivities from harmless to worst."""
Action = Literal["keep", "hash", "truncate", "redact", "drop"]
"""Treatment of a value: keep it; replace it by a keyed hash; keep its beginning (of an IP address:
its network); replace it by a mark; drop it."""

SENSITIVITIES: Final[tuple[Sensitivity, ...]] = get_args(Sensitivity)
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
_USUAL: Final[Mapping[Sensitivity, Action]] = {
    "public": "keep",
    "internal": "keep",
    "pseudonym": "hash",
    "pii": "drop",
    "pci": "redact",
    "phi": "redact",
    "secret": "redact",
}
_DAY_NS: Final = 86_400 * 10**9
_TRUNCATED_CHARACTERS: Final = 4
_NETWORK_BITS: Final = {4: 24, 6: 48}
_HASHED: Final = re.compile(r"h[A-Za-z0-9_-]+(\.[0-9]+)?:[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Sensitive:
    """Marks a field; `action` is the class's usual one unless given.

    Raises:
        RefusedSpecError: No such class or action.
    """

    sensitivity: Sensitivity
    action: Action = field(default="")  # type: ignore[arg-type]  # filled in at once

    def __post_init__(self) -> None:
        if self.sensitivity not in SENSITIVITIES:
            raise RefusedSpecError(f"a sensitivity is one of {', '.join(SENSITIVITIES)}")
        action = str(self.action) or _USUAL[self.sensitivity]
        if action not in ACTIONS:
            raise RefusedSpecError(f"an action is one of {', '.join(ACTIONS)}")
        object.__setattr__(self, "action", action)

    def covers(self, other: Self) -> bool:
        """Return whether this marking protects a field at least as well as the other."""
        return SENSITIVITIES.index(self.sensitivity) >= SENSITIVITIES.index(
            other.sensitivity
        ) and ACTIONS.index(self.action) >= ACTIONS.index(other.action)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "x-sensitivity": self.sensitivity, "x-action": self.action}


def marker_of(found: FieldInfo) -> Sensitive | None:
    """The field's strictest marker, wherever in its annotation it stands."""
    markers = [rule for rule in found.metadata if isinstance(rule, Sensitive)]
    markers += _markers(found.annotation)
    return max(markers, key=_strictness, default=None)


def _strictness(marker: Sensitive) -> tuple[int, int]:
    return ACTIONS.index(marker.action), SENSITIVITIES.index(marker.sensitivity)


def _markers(annotation: Any) -> Iterator[Sensitive]:
    if get_origin(annotation) is Annotated:
        yield from (rule for rule in annotation.__metadata__ if isinstance(rule, Sensitive))
    for inner in get_args(annotation):
        yield from _markers(inner)


@dataclass(frozen=True, slots=True)
class HashKey:
    """The key that pseudonyms are made with.

    Its id, and with rotation the period, stand in the value: they say which values can be equal.

    Args:
        id: Short; letters, digits, ``_`` and ``-``.
        secret: At least 16 bytes, the same wherever values must be comparable.
        rotate_days: A value is hashed differently in each such period of its record's time; 0 is
            never.

    Raises:
        SpecError: A malformed id, a short secret.
    """

    id: str
    secret: bytes = field(repr=False)
    rotate_days: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"[A-Za-z0-9_-]{{1,{HASH_KEY_ID_CHARACTERS_MAX}}}", self.id):
            raise SpecError("the id of a hash key is up to 16 letters, digits, _ and -")
        if len(self.secret) < HASH_KEY_BYTES_MIN:
            raise SpecError(f"a hash key needs at least {HASH_KEY_BYTES_MIN} bytes")
        if self.rotate_days < 0:
            raise SpecError("rotate_days is 0 or more")

    @classmethod
    def parse(cls, text: str) -> Self:
        """``id:secret`` or ``id:secret:rotate_days``, as in PENSTOCK_HASH_KEY.

        Raises:
            SpecError: It is not of that form; the message does not hold the secret.
        """
        parts = text.split(":")
        if len(parts) not in (2, 3) or (len(parts) == 3 and not parts[-1].isdecimal()):
            raise SpecError("a hash key is id:secret or id:secret:rotate_days")
        return cls(parts[0], parts[1].encode(), int(parts[2]) if len(parts) == 3 else 0)

    def hashed(self, value: str, time_ns: int) -> str:
        """``h<id>:<32 hex digits>``; with rotation ``h<id>.<period>:…``. BLAKE2b, RFC 7693."""
        secret, label = hashlib.blake2b(self.secret, digest_size=32).digest(), f"h{self.id}"
        if self.rotate_days:
            period = str(time_ns // (_DAY_NS * self.rotate_days))
            secret = hashlib.blake2b(period.encode(), key=secret, digest_size=32).digest()
            label = f"{label}.{period}"
        digest = hashlib.blake2b(value.encode("utf-8", "replace"), key=secret, digest_size=16)
        return f"{label}:{digest.hexdigest()}"


def redacted(sensitivity: Sensitivity) -> str:
    """Return the text that replaces a value."""
    return f"[redacted:{sensitivity}]"


def is_hashed(value: str) -> bool:
    return _HASHED.fullmatch(value) is not None


def truncated(value: str) -> str:
    """An IP address's network (/24, /48 for IPv6), of other text the first four characters."""
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        cut = len(value) > _TRUNCATED_CHARACTERS and not value.endswith("…")
        return value[:_TRUNCATED_CHARACTERS] + "…" if cut else value
    network = ipaddress.ip_network(f"{address}/{_NETWORK_BITS[address.version]}", strict=False)
    return str(network.network_address)
