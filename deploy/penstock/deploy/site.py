"""A deployment whose parts run on separate hosts: their names, and each part's configuration.

The configurations are those of `penstock up` (`topology`), with names for addresses, TLS on every
port that others reach, and everybody known. Each part finds its files in `FILES`/PART.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.deploy.up.layout import Layout
from penstock.deploy.up.topology import (
    CLUSTER,
    LOGD_PORTS,
    NATS_PAYLOAD_BYTES_MAX,
    STREAMS,
    Topology,
    collector_document,
    default_ports,
    logd_document,
    logd_parts,
    router_document,
)

FILES: Final = Path("/etc/penstock")
DATA: Final = Path("/var/lib/penstock")
RUN: Final = Path("/run/penstock")
POD_LOGS: Final = Path("/var/log/pods")
ANYBODY: Final = "0.0.0.0"  # noqa: S104 - inside its own network; what it reaches has TLS
NATS_USERS: Final = ("logd", "collector", "operator")
KEYS: Final = ("operator", "router", "console", "prometheus")
"""The parts that have an API key of logd."""
ADMIN_READERS: Final = {
    "collector": ("console", "prometheus"),
    "router": ("console", "prometheus"),
    "console": (),
}
"""Parts that are no logd, and who is given the token of their `/status` and `/metrics`. Each has
its own, which is no key of logd's; clients of that part show it."""
_GRANTS: Final = (
    ("router", ("read", "cursor"), STREAMS),
    ("console", ("read", "alter"), STREAMS),
    ("console", ("read",), ("__status",)),
    ("prometheus", ("read",), ("__status",)),
)
"""The rights of each key at logd; the operator's may do everything. A collector has no key."""


@dataclass(frozen=True, slots=True)
class Site:
    """The addresses of one deployment's parts.

    Attributes:
        name: Kind of the site, as in `penstock init --for`.
        hosts: Each logd's host by its name; its other names are `others`.
        nats: The host of nats-server.
        domain: Behind each host's name, where names may be longer; empty: nowhere.
        one_place: The files of all logd are in one directory, each named for its node.
        collectors: A host's name that stands for each collector there is.
    """

    name: str
    hosts: Mapping[str, str]
    nats: str = "nats"
    domain: str = ""
    one_place: bool = False
    collectors: str = "collector"

    @property
    def nodes(self) -> list[str]:
        """The names of all logd."""
        return list(self.hosts)

    def names(self, host: str) -> list[str]:
        """Under which a host is reached; this machine too, for its own health checks."""
        longer = [f"{host}.{self.domain}"] if self.domain else []
        return [host, *longer, "localhost", "127.0.0.1"]

    def place(self, node: str) -> str:
        """The directory of a logd's files."""
        return "logd" if self.one_place else node

    def file(self, node: str, name: str) -> str:
        """A file of a logd's own in that directory, by its short name."""
        return f"{node}-{name}" if self.one_place else name

    def servers(self) -> str:
        """The servers that readers connect to."""
        return ",".join(f"{host}:{LOGD_PORTS['fetch']}" for host in self.hosts.values())

    def nats_url(self, user: str = "", password: str = "") -> str:
        """The URL of NATS."""
        login = f"{user}:{password}@" if user else ""
        return f"tls://{login}{self.nats}:4222"


def site_of(name: str, nodes: int) -> Site:
    """The deployment that `deploy/compose.yaml` or `deploy/k8s` describes."""
    if name == "kubernetes":
        hosts = {f"logd-{number}": f"logd-{number}.logd" for number in range(nodes)}
        domain = "penstock.svc.cluster.local"
        return Site(name, hosts, domain=domain, one_place=True, collectors="collectors")
    return Site(name, {f"logd-{number + 1}": f"logd-{number + 1}" for number in range(nodes)})


def documents(site: Site, passwords: Mapping[str, str]) -> dict[str, str]:
    """The text of each configuration file, by its path below the directory of all parts.

    Args:
        site: The deployment.
        passwords: Passwords of `NATS_USERS`.
    """
    count = len(site.hosts)
    ports = default_ports(logd_parts(count))
    topology = Topology(Layout(DATA), ports, nodes=count, nats_url=site.nats_url())
    found: dict[str, Any] = {
        f"{site.place(node)}/{site.file(node, 'logd.yaml')}": _logd(topology, site, node, passwords)
        for node in site.nodes
    }
    found["collector/collector.yaml"] = _collector(topology, site, passwords)
    found["router/router.yaml"] = lake = _router(topology, site)
    found["router/backends.yaml"] = _backends(lake)
    found["console/console.yaml"] = _console(site)
    texts = {
        path: "# Written by `penstock init`; environment variables override keys.\n"
        + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        for path, document in found.items()
    }
    return texts | {"nats/nats.conf": _nats(passwords)}


def _logd(
    topology: Topology, site: Site, node: str, passwords: Mapping[str, str]
) -> dict[str, Any]:
    files = FILES / site.place(node)

    def own(name: str) -> str:
        return str(files / site.file(node, name))

    initial_members = {one: f"{host}:{LOGD_PORTS['peer']}" for one, host in site.hosts.items()}
    return logd_document(topology, topology.logds()[site.nodes.index(node)]) | {
        "node": node,
        "data_dir": str(DATA / "logd"),
        "nats": {
            "url": site.nats_url(),
            "user": "logd",
            "password": passwords["logd"],
            "tls": {"ca_file": str(files / "ca.pem")},
        },
        "fetch": f"{ANYBODY}:{LOGD_PORTS['fetch']}",
        "admin": f"{ANYBODY}:{LOGD_PORTS['admin']}",
        "tls": {"cert_file": own("cert.pem"), "key_file": own("cert.key")},
        "auth": {
            "required": True,
            "acl": True,
            "superusers": ["operator"],
            "grants": [
                {"principal": name, "actions": list(actions), "resources": list(resources)}
                for name, actions, resources in _GRANTS
            ],
            "keys_file": str(files / "keys"),
        },
        "connect_timeout_s": 60,
        "cluster": {
            "name": CLUSTER,
            "peer": f"{ANYBODY}:{LOGD_PORTS['peer']}",
            "initial_members": initial_members,
            "advertise": {"fetch": f"{site.hosts[node]}:{LOGD_PORTS['fetch']}"},
            "tls": {
                "ca_file": str(files / "nodes-ca.pem"),
                "cert_file": own("node.pem"),
                "key_file": own("node.key"),
                "named_nodes": True,
            },
        },
    }


def _collector(topology: Topology, site: Site, passwords: Mapping[str, str]) -> dict[str, Any]:
    return collector_document(topology) | {
        "name": "collector",
        "data_dir": str(DATA / "collector"),
        "nats": {
            "url": site.nats_url(),
            "user": "collector",
            "password": passwords["collector"],
            "ca_file": str(FILES / "collector" / "ca.pem"),
        },
        "admin": f"{ANYBODY}:9295",
        "admin_access": _admin_access("collector"),
        "resource": {"deployment.environment.name": site.name},
        "connect_timeout_s": 60,
        "sensitive": {"hash_key": {"file": str(FILES / "collector" / "pseudonyms.key")}},
        "sources": [
            {"type": "unix", "path": str(RUN / "collector.sock"), "mode": 0o666},
            {"type": "forward", "listen": f"{ANYBODY}:24224"},
            {"type": "otlp", "grpc": f"{ANYBODY}:4317", "http": f"{ANYBODY}:4318"},
            {"type": "host_metrics", "interval_s": 15},
            *([_container_logs()] if site.name == "kubernetes" else []),
        ],
    }


def _container_logs() -> dict[str, Any]:
    """Container logs of the node. Penstock's own are left out: each line would make lines."""
    return {
        "type": "file",
        "include": [f"{POD_LOGS}/*/*/*.log"],
        "exclude": [f"{POD_LOGS}/penstock_*/*/*.log"],
        "format": "cri",
        "service": "from_container",
        "kubernetes": {},
    }


def _router(topology: Topology, site: Site) -> dict[str, Any]:
    files = FILES / "router"
    return router_document(topology) | {
        "logd": site.servers(),
        "source": {"tls_ca_file": str(files / "ca.pem"), "token_file": str(files / "token")},
        "admin": f"{ANYBODY}:9296",
        "admin_access": _admin_access("router"),
        "actions_token_file": str(files / "actions.token"),
        "connect_timeout_s": 60,
    }


def _admin_access(part: str) -> dict[str, str]:
    files = FILES / part
    return {
        "token_file": str(files / "admin.token"),
        "cert_file": str(files / "cert.pem"),
        "key_file": str(files / "cert.key"),
    }


def _backends(lake: dict[str, Any]) -> dict[str, Any]:
    """A second job for the profile `demo`: the same records to backends that people know."""
    return lake | {
        "job": "backends",
        "checkpoint_dir": str(DATA / "backends" / "checkpoint"),
        "routes": [
            {"name": "logs", "where": "kind = 'log'", "sinks": ["loki", "opensearch"]},
            {"name": "spans", "where": "kind = 'span'", "sinks": ["jaeger"]},
        ],
        "sinks": {
            "loki": {"type": "loki", "url": "http://loki:3100"},
            "opensearch": {"type": "elasticsearch", "url": "http://opensearch:9200"},
            "jaeger": {"type": "otlp", "url": "http://jaeger:4318"},
        },
    }


def _console(site: Site) -> dict[str, Any]:
    """The page that shows it all; compose makes its port this machine's own.

    Where others share the network (Kubernetes) it has TLS, and looking needs a token.
    """
    files = FILES / "console"
    logds = {node: f"https://{host}:{LOGD_PORTS['admin']}" for node, host in site.hosts.items()}
    own = {"cert_file": str(files / "cert.pem"), "key_file": str(files / "cert.key")}
    document = {
        "listen": f"{ANYBODY}:9299",
        "admin": "127.0.0.1:9298",
        "admin_access": {"token_file": str(files / "admin.token")},
        "parts": {
            "collector": f"https://{site.collectors}:9295",
            **logds,
            "router": "https://router:9296",
        },
        "part_tokens": {
            part: str(files / f"{part}.token")
            for part, readers in ADMIN_READERS.items()
            if "console" in readers
        },
        "logd": site.servers(),
        "token_file": str(DATA / "console.token"),
        "read_token_file": str(files / "read.token"),
        "router_token_file": str(files / "actions.token"),
        "access": {"ca_file": str(files / "ca.pem"), "token_file": str(files / "token")},
        "history": {"directory": str(DATA / "history")},
    }
    if not site.one_place:
        return document | {"insecure_listener": True, "read_without_token": True}
    return document | {
        "admin": f"{ANYBODY}:9298",
        "admin_access": {"token_file": str(files / "admin.token"), **own},
        "each_address": ["collector"],
        "token_file": str(files / "console.token"),
        "hosts": ["console", f"console.{site.domain}"],
        "tls": own,
    }


def _nats(passwords: Mapping[str, str]) -> str:
    """nats-server's configuration: TLS, and each user no more than it needs.

    logd listens to whatever its streams store, and publishes acks and its probes. There is no port
    for monitoring, which asks nobody who they are: who wants to know whether it runs connects.
    """
    subjects = ", ".join(f'"telemetry.{name}.>"' for name in STREAMS)
    files = FILES / "nats"
    sends = f'publish: [{subjects}], subscribe: ["_INBOX.>"]'
    may = {
        "logd": 'publish: ["_INBOX.>", "_PENSTOCK.>"], subscribe: {allow: [">"], deny: ["$SYS.>"]}',
        "collector": sends,
        "operator": sends,
    }
    users = "".join(
        f'    {{user: {user}, password: "{passwords[user]}", permissions: {{{may[user]}}}}}\n'
        for user in NATS_USERS
    )
    return (
        "# Written by `penstock init`.\n"
        "server_name: penstock\n"
        f"listen: {ANYBODY}:4222\n"
        f"max_payload: {NATS_PAYLOAD_BYTES_MAX}\n"
        f'tls {{cert_file: "{files / "cert.pem"}", key_file: "{files / "cert.key"}"}}\n'
        f"authorization {{\n  users = [\n{users}  ]\n}}\n"
    )
