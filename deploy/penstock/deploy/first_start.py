"""`penstock init`: what a deployment needs before its first start, made once.

Certificates, API keys, passwords and configuration files go to one directory for each part, so that
each part can be given its own and no other's. What is there is kept: a second run changes nothing
but what the version that runs it configures otherwise, and certificates that are about to end.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock.deploy.authority import Authority
from penstock.deploy.kept import keep
from penstock.deploy.site import ADMIN_READERS, KEYS, NATS_USERS, Site, documents
from penstock.logd.security.api_keys import line_of, make_key
from penstock.service.clock import Clock
from penstock.service.errors import ConfigError

_SECRET_BYTES: Final = 32
_READERS: Final = ("router", "console", "prometheus", "operator")
"""Who connects to logd: with its authority's certificate and a key."""

PAGE_TOKENS: Final = ("read", "console")


@dataclass(frozen=True, slots=True)
class Secrets:
    """What is known to nobody but those it is for.

    Attributes:
        passwords: Of users at nats-server.
        keys: API keys of logd's.
        admin: Tokens of parts' admin endpoints.
        actions: The token with which the console has the router act.
        page: Tokens of the console's page: `read` shows what it knows, `console` acts, too.
    """

    passwords: Mapping[str, str]
    keys: Mapping[str, str]
    admin: Mapping[str, str]
    actions: str
    page: Mapping[str, str]


def init(root: Path, site: Site, clock: Clock) -> list[Path]:
    """Make what is missing below a directory.

    Args:
        root: Holds a directory for each part; that of `operator` holds what signs and opens all.
        site: The deployment.
        clock: For the times in certificates.

    Returns:
        The files that were written.

    Raises:
        ConfigError: The directory cannot be written to, or holds something damaged.
    """
    before = _state(root)
    try:
        kept = _secrets(root / "operator" / "secrets.json")
        _certificates(root, site, clock)
        for path, content in _files(root, site, kept).items():
            keep(root / path, content)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or root}: {error.strerror or error}",
            fix="name a directory that this user may write to",
        ) from None
    after = _state(root)
    return sorted(path for path, content in after.items() if before.get(path) != content)


def _state(root: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in root.glob("*/*")
        if path.is_file() and not path.name.startswith(".")
    }


def _files(root: Path, site: Site, kept: Secrets) -> dict[str, bytes]:
    """Everything but certificates, by path below the root."""
    authority = (root / "operator" / "ca.pem").read_bytes()
    nodes = (root / "operator" / "nodes-ca.pem").read_bytes()
    keys = "".join(f"{line_of(kept.keys[name])}\n" for name in KEYS).encode()
    found = {path: text.encode() for path, text in documents(site, kept.passwords).items()}
    found["collector/ca.pem"] = authority
    for node in site.nodes:
        place = site.place(node)
        found |= {
            f"{place}/ca.pem": authority,
            f"{place}/nodes-ca.pem": nodes,
            f"{place}/keys": keys,
        }
    for reader in _READERS:
        found |= {f"{reader}/ca.pem": authority, f"{reader}/token": kept.keys[reader].encode()}
    for part, readers in ADMIN_READERS.items():
        token = kept.admin[part].encode()
        found[f"{part}/admin.token"] = token
        found |= {f"{reader}/{part}.token": token for reader in readers}
    for part in ("router", "console"):
        found[f"{part}/actions.token"] = kept.actions.encode()
    found["console/read.token"] = kept.page["read"].encode()
    if site.one_place:  # elsewhere the console makes its own, in its volume
        found["console/console.token"] = kept.page["console"].encode()
    url = site.nats_url("operator", kept.passwords["operator"])
    found["operator/nats.url"] = url.encode()
    return found


def _certificates(root: Path, site: Site, clock: Clock) -> None:
    """Two authorities: whatever the nodes' one signs is a node, and it signs nothing else."""
    operator = root / "operator"
    servers = Authority("penstock", operator / "ca.pem", operator / "ca.key", clock)
    nodes = Authority("penstock nodes", operator / "nodes-ca.pem", operator / "nodes-ca.key", clock)
    nats = root / "nats"
    servers.sign(site.nats, site.names(site.nats), nats / "cert.pem", nats / "cert.key")
    for part in ("collector", "router", *(["console"] if site.one_place else [])):
        place, names = root / part, site.names(part)
        if part == "collector" and site.collectors != part:
            names = [*names, *site.names(site.collectors)[:-2]]
        servers.sign(part, names, place / "cert.pem", place / "cert.key")
    for node, host in site.hosts.items():
        place = root / site.place(node)
        names = site.names(host)
        servers.sign(
            node, names, place / site.file(node, "cert.pem"), place / site.file(node, "cert.key")
        )
        nodes.sign(
            node, names, place / site.file(node, "node.pem"), place / site.file(node, "node.key")
        )


def _secrets(path: Path) -> Secrets:
    """Those of the file; what is missing there is made and written first."""
    found: dict[str, Any] = {}
    if path.exists():
        try:
            found = json.loads(path.read_text())
            found["passwords"], found["keys"] = dict(found["passwords"]), dict(found["keys"])
            for name in ("admin", "page"):  # an older version made none
                found[name] = dict(found.get(name, {}))
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{path}: damaged",
                fix="bring it back from a copy; or remove it, and all passwords and keys are new",
            ) from None
    passwords = {user: secrets.token_urlsafe(_SECRET_BYTES) for user in NATS_USERS} | found.get(
        "passwords", {}
    )
    keys = {name: make_key(name) for name in KEYS} | found.get("keys", {})
    admin = {part: secrets.token_urlsafe(_SECRET_BYTES) for part in ADMIN_READERS} | found.get(
        "admin", {}
    )
    page = {name: secrets.token_urlsafe(_SECRET_BYTES) for name in PAGE_TOKENS} | found.get(
        "page", {}
    )
    actions = str(found.get("actions") or secrets.token_urlsafe(_SECRET_BYTES))
    made = Secrets(passwords, keys, admin, actions, page)
    keep(path, (json.dumps(asdict(made), indent=2) + "\n").encode())
    return made
