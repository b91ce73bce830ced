"""Targets of scrapes: those that are configured, in files, and behind names of DNS.

A target is its labels, as in Prometheus: `__address__`, `__scheme__`, `__metrics_path__` and
`__param_NAME` make its URL, other labels with two underscores are dropped after the rules, and the
rest is on each of its samples. A file has a list of ``{"targets": [HOST:PORT], "labels": {…}}``, in
JSON or YAML; the labels of a target from a file or a name say so: `__meta_filepath`,
`__meta_dns_name`.
"""

import asyncio
import glob
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

import yaml
from pydantic import Field, model_validator

from penstock.base.sockets import split_host_port
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import MIB
from penstock.collector.sources.prometheus.relabel import Labels, Rule
from penstock.collector.sources.prometheus.srv_records import srv_records
from penstock.collector.sources.settings import Section
from penstock.service import HostPort

_FILE_BYTES_MAX: Final = 4 * MIB
_FILES_MAX: Final = 1000
"""Files of all patterns that are read."""
_INTERNAL: Final = "__"
_ADDRESS: Final = "__address__"
_SCHEME: Final = "__scheme__"
_PATH: Final = "__metrics_path__"
_PARAMETER: Final = "__param_"


class DnsSection(Section):
    """Names whose addresses are targets."""

    names: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        min_length=1, max_length=256
    )
    type: Literal["A", "AAAA", "SRV"] = "A"
    port: int | None = Field(
        default=None, ge=1, le=65_535, description="of every address; SRV records have their own"
    )
    server: HostPort | None = Field(
        default=None, description="the name server of SRV records; null: those of resolv.conf"
    )

    @model_validator(mode="after")
    def _has_a_port(self) -> Self:
        if (self.port is None) != (self.type == "SRV"):
            msg = "`port` is needed for A and AAAA, and SRV records have their own"
            raise ValueError(msg)
        return self


@dataclass(frozen=True, slots=True)
class Target:
    """What is scraped.

    Attributes:
        labels: Labels of each of its samples, sorted.
    """

    url: str
    labels: tuple[tuple[str, str], ...] = ()


class DiscoveryError(Exception):
    """A file or name could not be read; the message says why."""


def labels_of_url(url: str, labels: Mapping[str, str]) -> Labels:
    """The labels of a URL that is configured."""
    parts = urlsplit(url)
    found = {**labels, _ADDRESS: parts.netloc, _SCHEME: parts.scheme, _PATH: parts.path or "/"}
    return found | {f"{_PARAMETER}{name}": value for name, value in parse_qsl(parts.query)}


def target_of(labels: Labels, rule: Rule) -> Target | None:
    """The target of labels after the rules; None: they drop it, or leave no address."""
    whole = {_SCHEME: "http", _PATH: "/metrics", **labels}
    made = rule(whole)
    if made is None or not (address := made.get(_ADDRESS, "")):
        return None
    parameters = {
        name.removeprefix(_PARAMETER): value
        for name, value in made.items() if name.startswith(_PARAMETER)
    }  # fmt: skip
    query = f"?{urlencode(parameters)}" if parameters else ""
    url = f"{made.get(_SCHEME, 'http')}://{address}{made.get(_PATH, '/metrics')}{query}"
    kept = {name: value for name, value in made.items() if value and not name.startswith(_INTERNAL)}
    return Target(url, tuple(sorted(kept.items())))


def read_files(patterns: Sequence[str]) -> tuple[dict[str, list[Labels]], dict[str, str]]:
    """The labels of the targets of each file, and what is wrong with each of the others; blocks.

    A file that cannot be read is not among the first, so that its targets of before go on.
    """
    found: dict[str, list[Labels]] = {}
    wrong: dict[str, str] = {}
    names = (name for pattern in patterns for name in sorted(glob.glob(pattern)))  # noqa: PTH207
    for name in islice(dict.fromkeys(names), _FILES_MAX):
        try:
            found[name] = [*_targets_in(Path(name))]
        except (OSError, DiscoveryError) as error:
            wrong[name] = str(error)
    return found, wrong


def _targets_in(path: Path) -> Iterator[Labels]:
    with path.open("rb") as opened:
        data = opened.read(_FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise DiscoveryError(f"has more than {_FILE_BYTES_MAX} bytes")
    try:
        groups: Any = yaml.safe_load(data)  # JSON is YAML
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(f"is neither JSON nor YAML: {error}") from None
    for group in groups if isinstance(groups, list) else [groups]:
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise DiscoveryError("has something that is no {targets: […], labels: {…}}")
        labels = group.get("labels") or {}
        if not isinstance(labels, dict):
            raise DiscoveryError("has labels that are no mapping")
        for address in group["targets"]:
            own = {str(key): str(value) for key, value in labels.items()}
            yield {**own, _ADDRESS: str(address), "__meta_filepath": str(path)}


async def resolve(section: DnsSection, name: str) -> list[Labels]:
    """The labels of a name's targets.

    Raises:
        DiscoveryError: It cannot be resolved.
    """
    if section.type == "SRV":
        return await _resolve_srv(section, name)
    family = socket.AF_INET if section.type == "A" else socket.AF_INET6
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            name, section.port, family=family, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise DiscoveryError(str(error)) from None
    hosts = sorted({str(entry[4][0]) for entry in found})
    return [
        {
            _ADDRESS: f"[{host}]:{section.port}" if ":" in host else f"{host}:{section.port}",
            "__meta_dns_name": name,
        }
        for host in hosts
    ]


async def _resolve_srv(section: DnsSection, name: str) -> list[Labels]:
    try:
        server = None if section.server is None else split_host_port(section.server)
        found = await srv_records(name, server)
    except (OSError, RemoteProtocolError, ValueError) as error:
        raise DiscoveryError(str(error) or type(error).__name__) from None
    return [
        {
            _ADDRESS: f"{record.target}:{record.port}",
            "__meta_dns_name": name,
            "__meta_dns_srv_record_target": f"{record.target}.",
            "__meta_dns_srv_record_port": str(record.port),
        }
        for record in found
        if record.target  # RFC 2782: "." says that there is no such service
    ]
