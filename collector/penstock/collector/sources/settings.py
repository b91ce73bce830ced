"""Settings that sources share, and the check that no two listen in one place.

The settings of each source stand in its module. `penstock collector sources` prints them;
docs/collector/sources has a page for each.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    ConfigDict,
    Field,
    field_validator,
)

from penstock.base.sockets import split_host_port
from penstock.collector.decode.timestamps import known_zone, layouts_of
from penstock.collector.limits import (
    CONNECTIONS_MAX,
)
from penstock.collector.regex import compile_pattern
from penstock.service import ConfigError, FilePath, Quantities
from penstock.service.config_types import Form, Secret

REUSE_PORT: Final = "other processes of this user may listen there, too"


class Section(Quantities):
    """A part of the configuration: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Name = Annotated[str, Form(r"^[A-Za-z0-9_-]{1,64}$", "1 to 64 characters of A-Z a-z 0-9 _ -")]
"""Name of a source or transform."""


class SourceSettings(Section):
    """The settings of one source; a subclass narrows `type` to its one name.

    Attributes:
        name: Unique in the file; by default its type.
    """

    type: str
    name: Name | None = None

    def secrets(self) -> Iterator[tuple[str, Secret]]:
        """Keys and secrets without which the source does not start."""
        yield from ()

    @property
    def can_be_shared(self) -> bool:
        """True if several worker processes can listen at its address; then it has `reuse_port`."""
        return False

    @property
    def max_request_bytes(self) -> int:
        """Bytes of the largest request that must fit into what the source may hold; 0: of any."""
        return 0


def read_secret(secret: Secret, key: str) -> str:
    """Read a secret that a configuration gives at `key`.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return secret.read()
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error
        raise ConfigError(
            f"{key}: {reason}",
            fix="name a variable that is set, or a file that the collector may read",
        ) from None


class ListeningSettings(SourceSettings):
    """Settings of every source that accepts connections."""

    max_connections: int = Field(
        default=CONNECTIONS_MAX, ge=1, le=65_536, description="open at once on one address"
    )


class TlsSection(Section):
    """The certificate that a listening source shows; read again when it changes."""

    cert_file: FilePath = Field(description="PEM: the certificate and what leads to its authority")
    key_file: FilePath = Field(description="PEM: its key, without a password")
    ca_file: FilePath | None = Field(
        default=None, description="PEM: who must have signed a sender's certificate; none is asked"
    )


class TimestampOptions(Section):
    """The place of a time in a text, and its layout."""

    pattern: str | None = Field(
        default=None, description="RE2; its group `time`, its first group or all of it is the time"
    )
    layouts: list[str] = Field(
        default=["auto"], min_length=1, max_length=32, description="named, or as for strptime"
    )
    timezone: str = Field(default="UTC", description="of times that name none")

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            compile_pattern(value)
        return value

    @field_validator("layouts")
    @classmethod
    def _are_layouts(cls, value: list[str]) -> list[str]:
        layouts_of(value)
        return value

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return known_zone(value)


class LineTimestamp(TimestampOptions):
    """The place of a time in lines, of which some may be structured."""

    field: str | None = Field(
        default=None, min_length=1, description="the key of a JSON line that has its time"
    )
    on_error: Literal["pass", "filter", "quarantine"] = Field(
        default="pass", description="what becomes of a record whose time cannot be read"
    )


class LinesSettings(SourceSettings):
    """Settings that sources of lines share."""

    timestamp: LineTimestamp | None = Field(
        default=None, description="the time that stands in a line; what cannot be read is counted"
    )
    detect: list[Literal["severity", "time"]] = Field(
        default=[], description="what is looked for in the usual places of a line of text"
    )

    @field_validator("detect", mode="before")
    @classmethod
    def _may_be_one(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    def line_options(self) -> dict[str, Any]:
        """The options of `penstock.collector.decode.line_rules`; empty: nothing is looked for."""
        found: dict[str, Any] = {}
        if self.timestamp is not None:
            found["timestamp"] = self.timestamp.model_dump()
        if self.detect:
            found["detect"] = sorted(self.detect)
        return found


_PROTOCOLS = {"listen": "TCP", "grpc": "TCP", "http": "TCP", "tcp": "TCP", "udp": "UDP"}
"""The protocol of each key that holds an address to listen on."""


class Listener(NamedTuple):
    """One address of one source.

    Attributes:
        key: Its place in the configuration.
        place: The address, or the path of a Unix socket, as it is written.
        protocol: `TCP`, `UDP` or `Unix`.
        shares: Whether the kernel lets others listen there, too.
    """

    key: str
    place: str
    protocol: str
    shares: bool


def clash(sources: Sequence[SourceSettings]) -> str | None:
    """Return what is wrong where two sources listen in one place; None: no two do."""
    for one, other in combinations(_listeners(sources), 2):
        if _is_one_place(one, other) and not (one.shares and other.shares):
            return f"{other.key}: {one.key} has {one.place}, too: {_FIXES[one.protocol]}"
    return None


_FIXES = {
    "TCP": "give one of them another port, or null for none",
    "UDP": "give one of them another port, or null for none",
    "Unix": "give one of them another path",
}


def _listeners(sources: Sequence[SourceSettings]) -> Iterator[Listener]:
    for index, source in enumerate(sources):
        for key, protocol in _PROTOCOLS.items():
            if (address := getattr(source, key, None)) is not None:
                shares = bool(getattr(source, "reuse_port", False))
                yield Listener(f"sources.{index}.{key}", address, protocol, shares)
        if isinstance(path := getattr(source, "path", None), Path):  # text: a path of URLs
            yield Listener(f"sources.{index}.path", str(path), "Unix", shares=False)


def _is_one_place(one: Listener, other: Listener) -> bool:
    if one.protocol != other.protocol:
        return False
    if one.protocol == "Unix":
        return one.place == other.place
    host, port = split_host_port(one.place)
    other_host, other_port = split_host_port(other.place)
    return port == other_port != 0 and _meet(host, other_host)


def _meet(host: str, other: str) -> bool:
    """Return whether two hosts overlap: they are equal, or one is the wildcard of its family."""
    try:
        one, two = map(ipaddress.ip_address, map(_as_number, (host, other)))
    except ValueError:  # a name, of which only the resolver knows more
        return host == other
    return one == two or (one.version == two.version and (one.is_unspecified or two.is_unspecified))


def _as_number(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host
