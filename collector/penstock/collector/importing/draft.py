"""The configuration that an import makes, with a comment for each thing that has no counterpart."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS_MAX: Final = 64
_SHOWN_CHARACTERS_MAX: Final = 120
_WIDTH: Final = 100
EVERY_HOST: Final = "0.0.0.0"  # noqa: S104 - as the configuration that is read has it


class Given:
    """A section of a foreign configuration; it knows what was asked of it.

    Args:
        values: The section.
        where: Its place, for comments.
    """

    def __init__(self, values: Any, where: str) -> None:
        self.values: dict[str, Any] = dict(values) if isinstance(values, Mapping) else {}
        self.where = where
        self._asked: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key that has a counterpart."""
        self._asked.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def section(self, key: str) -> "Given":
        """A section within this one."""
        return Given(self.take(key, {}), f"{self.where}.{key}")

    def skip(self, *keys: str) -> None:
        """Name keys that need no counterpart: the collector does it by itself, or has no use."""
        self._asked.update(keys)

    def left(self) -> list[str]:
        """Comments for the keys that nobody asked for."""
        return [
            f"{self.where}.{key}: no counterpart: {shown(value)}"
            for key, value in self.values.items()
            if key not in self._asked
        ]


KINDS: Final[Mapping[str, str]] = {"logs": "log", "traces": "span", "metrics": "metric"}
"""The kind of the records of a signal."""
_PARTS: Final = {"otlp": ("grpc", "http"), "statsd": ("udp",), "syslog": ("udp", "tcp")}
"""Keys of sources that listen by default; they are null where the other agent did not listen."""


@dataclass(slots=True)
class _Item:
    values: dict[str, Any]
    notes: list[str]


@dataclass(slots=True)
class Draft:
    """A configuration that grows while another one is read.

    Attributes:
        tool: Name of the agent whose configuration it was.
        notes: Comments about things that belong to no source or transform.
    """

    tool: str
    notes: list[str] = field(default_factory=list)
    sources: dict[str, _Item] = field(default_factory=dict)
    transforms: dict[str, _Item] = field(default_factory=dict)

    def source(self, name: str, values: Mapping[str, Any], notes: Iterable[str] = ()) -> str:
        """Add a source; returns its name, which is unique."""
        own = self._unique(name)
        made = {key: value for key, value in values.items() if value is not None}
        made |= {part: None for part in _PARTS.get(made["type"], ()) if part not in made}
        self.sources[own] = _Item({"type": made.pop("type"), "name": own, **made}, [*notes])
        return own

    def transform(
        self, name: str, inputs: Iterable[str], values: Mapping[str, Any], notes: Iterable[str] = ()
    ) -> str:
        """Add a transform; returns its name, which is unique."""
        own = self._unique(name)
        made = {key: value for key, value in values.items() if value is not None}
        kind = made.pop("type")
        self.transforms[own] = _Item({"type": kind, "inputs": [*inputs], **made}, [*notes])
        return own

    def part_signals(
        self, name: str, inputs: Iterable[str], signals: Iterable[str]
    ) -> dict[str, list[str]]:
        """Part records by signal (`logs`, `traces`, `metrics`); returns what each comes out of."""
        routes = {one: {"where": f'kind == "{KINDS[one]}"'} for one in signals}
        own = self.transform(f"{name}_signals", inputs, {"type": "route", "routes": routes})
        return {one: [f"{own}.{one}"] for one in routes}

    def note(self, where: str, reason: str) -> None:
        """Say of a thing that it has no counterpart."""
        self.notes.append(f"{where}: {reason}")

    def document(self) -> dict[str, Any]:
        """The configuration without its comments."""
        found: dict[str, Any] = {
            "data_dir": "/var/lib/penstock/collector",
            "sources": [item.values for item in self.sources.values()],
        }
        if self.transforms:
            found["transforms"] = {name: item.values for name, item in self.transforms.items()}
        return found

    def text(self) -> str:
        """The configuration as YAML, each comment above what it is about."""
        parts = [
            f"# Made from a configuration of {self.tool} by `penstock collector import-config`.",
            "# A line that begins with `not taken over` names what has no counterpart here.",
            "data_dir: /var/lib/penstock/collector",
            *map(_comment, self.notes),
            "sources:" if self.sources else "sources: []",
        ]
        for item in self.sources.values():
            parts += [f"  {_comment(note)}" for note in item.notes]
            parts.append(_indented([item.values], 2))
        if self.transforms:
            parts.append("transforms:")
        for name, item in self.transforms.items():
            parts += [f"  {_comment(note)}" for note in item.notes]
            parts.append(_indented({name: item.values}, 2))
        return "\n".join(parts) + "\n"

    def _unique(self, name: str) -> str:
        """A name that neither a source nor a transform has."""
        base = _NAME.sub("_", name).strip("_")[: _NAME_CHARACTERS_MAX - 4] or "part"
        taken = {*self.sources, *self.transforms, "output"}
        own, number = base, 2
        while own in taken:
            own, number = f"{base}_{number}", number + 1
        return own


def docker_files(host: Any) -> dict[str, Any]:
    """The source of the files that Docker writes of its containers.

    Args:
        host: URL of Docker's engine, as the other agent has it; one that is no Unix socket cannot
            be asked.
    """
    path = str(host or "").removeprefix("unix://")
    return {
        "type": "file", "include": ["/var/lib/docker/containers/*/*-json.log"],
        "format": "docker", "service": "from_container",
        "docker": {"socket": path} if path.startswith("/") else {},
    }  # fmt: skip


def shown(value: Any) -> str:
    """A value in a comment: on one line, and not too long."""
    if isinstance(value, str):
        text = value
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    text = " ".join(text.removesuffix("...").split())
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"


def _comment(note: str) -> str:
    return f"# not taken over: {' '.join(note.split())}"


def _indented(value: Any, blanks: int) -> str:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return "\n".join(f"{' ' * blanks}{line}" for line in text.splitlines())


def seconds(value: Any) -> float | None:
    """A duration as agents write it (`10`, `500ms`, `1m30s`), in seconds; None: it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, str):
        return None
    parts = _DURATION.findall(value)
    if not parts or _DURATION.sub("", value).strip():
        try:
            return float(value)
        except ValueError:
            return None
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts), 6)


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def size_bytes(value: Any) -> int | None:
    """A size as agents write it (`32k`, `1MiB`, `4096`), in bytes; None: it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(str(value).strip())
    if found is None:
        return None
    return int(float(found[1]) * 1024 ** " kmg".index((found[2] or " ").lower()))


_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)(?:i?[bB])?")


def listed(value: Any) -> list[str]:
    """One or several texts, perhaps with commas between them."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [str(part) for part in value] if isinstance(value, list) else []


def address(value: Any, default: str) -> str:
    """An address to listen on, `HOST:PORT`; a host that is left out is every one."""
    text = str(value or default)
    if text.isdecimal():
        text = f":{text}"
    return f"{EVERY_HOST}{text}" if text.startswith(":") else text
