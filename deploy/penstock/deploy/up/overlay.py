"""A user's own settings, laid over the configuration that the launcher writes for each part.

Mappings are merged key by key. Lists are joined; an item that has the name of an earlier one (its
`name`, else its `type`) takes that one's place. `null` takes a key away. Anything else replaces.
"""

from collections.abc import Mapping
from typing import Any, Final

OWN_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "logd": frozenset(
        {"node", "data_dir", "nats", "fetch", "admin", "grpc", "cluster", "auth", "tls"}
    ),
    "collector": frozenset({"data_dir", "nats", "admin", "admin_socket"}),
    "router": frozenset({"logd", "checkpoint_dir", "admin", "actions_token_file"}),
    "console": frozenset({"listen", "admin", "parts", "logd", "token_file"}),
}
"""By section, what the launcher itself decides: how the parts find one another."""


def check_overlay(overlay: object) -> None:
    """Whether this is an overlay: sections of `OWN_KEYS`, without the keys there.

    Raises:
        ValueError: It is not; says where, and what to do.
    """
    if not isinstance(overlay, Mapping):
        raise ValueError(f"the file holds a mapping of {', '.join(OWN_KEYS)} to their settings")  # noqa: TRY004
    for section, settings in overlay.items():
        if section not in OWN_KEYS:
            raise ValueError(f"{section}: not a part; there are {', '.join(OWN_KEYS)}")
        if not isinstance(settings, Mapping):
            raise ValueError(f"{section}: a mapping of settings is expected")  # noqa: TRY004
        for key in settings:
            if key in OWN_KEYS[section]:
                raise ValueError(
                    f"{section}.{key}: penstock up decides this; "
                    f"to set it, run the parts on their own, from copies of DIR/config"
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
