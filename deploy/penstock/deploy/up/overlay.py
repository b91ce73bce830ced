"""A user's own settings, laid over the configuration that the launcher writes for each part.

Mappings are merged key by key. Lists are joined; an item that has the name of an earlier one (its
`name`, else its `type`) takes that one's place. `null` takes a key away. Anything else replaces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

LOG_MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a log file above which the launcher empties it into one older file."""

LAUNCHER: Final = "launcher"
"""The section of `LauncherSettings`."""

PORTS_FROM: Final = (1024, 65_436)
"""The lowest and the highest first port of an appliance, which has the 99 after it, too."""


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """The section `launcher`: what `penstock up` does itself.

    It is no model of pydantic, which would take 6 MiB of the launcher for two numbers.

    Attributes:
        ports_from: The first of 100 ports of this appliance; none: the documented ports, or those
            that `ports.json` in the directory has.
        log_max_bytes: Bytes of a log file above which it is emptied into one older file.
    """

    ports_from: int | None = None
    log_max_bytes: int = LOG_MAX_BYTES


_RANGES: Final[Mapping[str, tuple[int, int | None]]] = {
    "ports_from": PORTS_FROM,
    "log_max_bytes": (1024, None),
}
"""The lowest and the highest value of each key of `LauncherSettings`."""

OWN_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "logd": frozenset(
        {"node", "data_dir", "nats", "fetch", "admin", "grpc", "cluster", "auth", "tls"}
    ),
    "collector": frozenset({"data_dir", "nats", "admin", "admin_socket"}),
    "router": frozenset({"logd", "checkpoint_dir", "admin", "actions_token_file"}),
    "console": frozenset({"listen", "admin", "parts", "logd", "token_file"}),
}
"""Keys by section that the launcher sets itself, so that the parts find one another."""


_SECTIONS: Final = ", ".join((*OWN_KEYS, LAUNCHER))


def launcher_settings(overlay: Mapping[str, Any]) -> LauncherSettings:
    """The section `launcher` of an overlay.

    Raises:
        ValueError: A key of it is not known, or its value is not allowed.
    """
    settings = overlay.get(LAUNCHER, {})
    wrong = [line for key, value in settings.items() if (line := _refused(key, value))]
    if wrong:
        raise ValueError("; ".join(f"{LAUNCHER}.{line}" for line in wrong))
    return LauncherSettings(**settings)


def _refused(key: str, value: object) -> str:
    """Why a key of the section `launcher` is refused; empty: it is not."""
    if key not in _RANGES:
        return f"{key}: not a key; there are {', '.join(_RANGES)}"
    lowest, highest = _RANGES[key]
    if type(value) is int and lowest <= value and (highest is None or value <= highest):
        return ""
    bounds = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
    return f"{key}: a whole number {bounds} is expected"


def check_overlay(overlay: object) -> None:
    """Check that an overlay has sections of `OWN_KEYS`, without the keys there, and `launcher`.

    Raises:
        ValueError: It has others; the message has the place and the fix.
    """
    if not isinstance(overlay, Mapping):
        raise ValueError(f"the file holds a mapping of {_SECTIONS} to their settings")  # noqa: TRY004
    for section, settings in overlay.items():
        if section not in (*OWN_KEYS, LAUNCHER):
            raise ValueError(f"{section}: not a part; there are {_SECTIONS}")
        if not isinstance(settings, Mapping):
            raise ValueError(f"{section}: a mapping of settings is expected")  # noqa: TRY004
        if section == LAUNCHER:
            launcher_settings(overlay)
            continue
        for key in settings:
            if key in OWN_KEYS[section]:
                raise ValueError(
                    f"{section}.{key}: penstock up decides this; "
                    f"to set it, run the parts on their own, with copies of DIR/config"
                )


def merged(base: Any, own: Any) -> Any:
    """`base` with `own` laid over it; neither is changed."""
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        both = {**base, **{key: merged(base.get(key), value) for key, value in own.items()}}
        return {key: value for key, value in both.items() if key not in own or value is not None}
    if isinstance(base, list) and isinstance(own, list):
        return _joined(base, own)
    return own


def _joined(base: list[Any], own: list[Any]) -> list[Any]:
    replacing = {name: item for item in own if (name := _name(item)) is not None}
    kept = [replacing.pop(name, item) if (name := _name(item)) else item for item in base]
    return kept + [item for item in own if not any(item is one for one in kept)]


def _name(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        return None
    found = item.get("name", item.get("type"))
    return found if isinstance(found, str) else None
