"""The parts that run on one host, their ports, and the configuration of each.

The configuration files are written to DIR/config at every start and stay there to be read.
"""

import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from penstock.deploy.checks import free_bytes, nats_server_binary, nearest
from penstock.deploy.disk_room import shown_bytes
from penstock.deploy.private_file import new_hash_key, write_private_file
from penstock.deploy.up.layout import Layout, read_ports_from
from penstock.deploy.up.overlay import launcher_settings, merged
from penstock.deploy.up.probe import is_serving
from penstock.deploy.up.supervision import SECOND_NS, PartPlan
from penstock.deploy.up.supervisor import Check, Part

HOST = "127.0.0.1"
DEFAULT_PORTS: Mapping[str, int] = {
    "nats": 4222,
    "nats_monitor": 8222,
    "collector_admin": 9295,
    "router_admin": 9296,
    "console_admin": 9298,
    "console": 9299,
    "forward": 24224,
    "otlp_grpc": 4317,
    "otlp_http": 4318,
}
LOGD_PORTS: Mapping[str, int] = {"fetch": 9293, "admin": 9294, "peer": 9297}
"""The ports of the first logd; each further logd adds `LOGD_PORTS_STEP`."""
LOGD_PORTS_STEP = 10

PORT_OFFSETS: Mapping[str, int] = {
    "nats": 0,
    "nats_monitor": 1,
    "console": 2,
    "console_admin": 3,
    "collector_admin": 4,
    "router_admin": 5,
    "forward": 6,
    "otlp_grpc": 7,
    "otlp_http": 8,
}
"""Above the first port of `--ports-from`. What is given out stays: users write ports down."""
LOGD_PORT_OFFSETS: Mapping[str, int] = {"fetch": 10, "admin": 11, "peer": 12}
"""The ports of the first logd; each further logd adds `LOGD_PORTS_STEP`."""
LAKE_DAYS = 30
"""Maximum age of the lake's partitions in days; a key of the site's `mine.yaml` sets another."""

PORTS_RESERVED = 100
"""Ports from that of `--ports-from` on that belong to one appliance."""


def default_ports(logds: Sequence[str], ports_from: int | None = None) -> dict[str, int]:
    """The port of each listener; a standalone logd has no `peer`.

    Args:
        logds: The parts that are a logd.
        ports_from: The first of `PORTS_RESERVED` ports of this appliance; None: the documented
            ports.
    """
    if ports_from is None:
        ports, of_logd, first = dict(DEFAULT_PORTS), LOGD_PORTS, 0
    else:
        ports = {name: ports_from + offset for name, offset in PORT_OFFSETS.items()}
        of_logd, first = LOGD_PORT_OFFSETS, ports_from
    for number, part in enumerate(logds):
        for name, port in of_logd.items():
            if name != "peer" or len(logds) > 1:
                ports[f"{part}_{name}"] = first + port + number * LOGD_PORTS_STEP
    return ports


def free_ports(names: Iterable[str]) -> dict[str, int]:
    """A free port for each listener."""
    with ExitStack() as held:  # all are held at once, so that no two are the same
        return {name: _free_port(held) for name in names}


def _free_port(held: ExitStack) -> int:
    listener = held.enter_context(socket.socket())
    listener.bind((HOST, 0))
    return int(listener.getsockname()[1])


RETENTION_S = 7 * 86_400
RETENTION_SHARE = 4
"""Streams may fill one of so many parts of the disk: of what is free and what they hold."""
RETENTION_BYTES_MIN = 64 * 1024 * 1024
STREAMS = ("logs", "traces", "metrics", "events", "audit")
CLUSTER = "penstock"
NODES_MAX = 5
REPLICAS_MAX = 3
NATS_PAYLOAD_BYTES_MAX = 2 * 1024 * 1024
PROBLEMS = "severity_number >= 17 or status_code = 'ERROR'"
"""Log records of level ERROR and above, and spans that failed."""


@dataclass(frozen=True, slots=True)
class Topology:
    """One launch.

    Attributes:
        layout: Layout of its directory.
        ports: Ports by listener, see `penstock.deploy.up.topology`.
        nodes: Number of logd nodes; more than one are a cluster.
        nats_url: A server that runs already; None to start one.
        app: The example app's command; None to run without.
        overlay: The user's own settings, by section; see `penstock.deploy.up.overlay`.
        retention_bytes: Maximum bytes of all streams of one logd together; None: unlimited.
        ports_from: The first of `PORTS_RESERVED` ports of this appliance; None: it has none.
    """

    layout: Layout
    ports: Mapping[str, int]
    nodes: int = 1
    nats_url: str | None = None
    app: tuple[str, ...] | None = None
    overlay: Mapping[str, Any] = field(default_factory=dict)
    retention_bytes: int | None = None
    ports_from: int | None = None

    def admin_urls(self) -> dict[str, str]:
        """The URL of each part's status."""
        listeners = {
            "nats": "nats_monitor",
            **{part: f"{part}_admin" for part in self.logds()},
            "collector": "collector_admin",
            "router": "router_admin",
            "console": "console_admin",
        }
        return {
            part: f"http://{HOST}:{self.ports[listener]}"
            for part, listener in listeners.items()
            if listener in self.ports
        }

    def logds(self) -> list[str]:
        """The parts that are a logd; in a cluster, the names of its nodes too."""
        return logd_parts(self.nodes)

    def data_path(self) -> list[str]:
        """The parts of this launch in the order in which a record meets them."""
        return self._present("app", "collector", "nats", *self.logds(), "router", "console")

    def drain_order(self) -> list[str]:
        """The parts of this launch, from the sources to the sinks; nodes one after another.

        The console shows how the others stop.
        """
        names = ("app", "collector", "router", *reversed(self.logds()), "nats", "console")
        return self._present(*names)

    def _present(self, *names: str) -> list[str]:
        absent = ({"app"} if self.app is None else set()) | ({"nats"} if self.nats_url else set())
        return [name for name in names if name not in absent]

    def log_servers(self) -> str:
        """The addresses of every logd, joined by commas, for readers."""
        return ",".join(self.address(f"{part}_fetch") for part in self.logds())

    def address(self, listener: str) -> str:
        """HOST:PORT of a listener."""
        return f"{HOST}:{self.ports[listener]}"

    def nats(self) -> str:
        """The URL of the NATS server in use."""
        return self.nats_url or f"nats://{self.address('nats')}"

    def nats_shown(self) -> str:
        """`nats`, without the credentials that a URL may hold."""
        scheme, separator, rest = self.nats().partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def logd_parts(nodes: int) -> list[str]:
    """The names of so many logd: a standalone one is `logd`, nodes of a cluster have numbers."""
    return ["logd"] if nodes == 1 else [f"logd-{number + 1}" for number in range(nodes)]


def launch_topology(
    layout: Layout,
    *,
    nats_url: str | None,
    nodes: int,
    any_free: bool = False,
    ports_from: int | None = None,
    overlay: Mapping[str, Any] | None = None,
) -> Topology:
    """The topology of a launch in a directory.

    Args:
        layout: The layout of the directory.
        nats_url: A server that runs already; None to start one.
        nodes: Number of logd nodes.
        any_free: Take whatever ports are free.
        ports_from: Its first port; None: that of the user's settings, or of an earlier
            start.
        overlay: The user's own settings.

    Raises:
        ConfigError: The file with the ports is damaged.
    """
    if any_free:
        ports_from = None
    else:
        ports_from = ports_from or launcher_settings(overlay or {}).ports_from
        ports_from = ports_from or read_ports_from(layout)
    ports = default_ports(logd_parts(nodes), ports_from)
    if nats_url is not None:
        ports = {name: port for name, port in ports.items() if name not in ("nats", "nats_monitor")}
    return Topology(
        layout,
        free_ports(ports) if any_free else ports,
        nodes=nodes,
        nats_url=nats_url,
        overlay=overlay or {},
        retention_bytes=retention_bytes(layout, nodes),
        ports_from=ports_from,
    )


def retention_bytes(layout: Layout, nodes: int) -> int:
    """Return the retention of each logd's streams: a share of the disk they all have.

    What they hold already counts as free, so that the bound does not shrink from start to start.
    """
    held = sum(_size(layout.data(part)) for part in logd_parts(nodes))
    return max((free_bytes(nearest(layout.root)) + held) // RETENTION_SHARE // nodes, 0)


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # retention may delete it meanwhile, or it is not for this user
            total += path.lstat().st_size
    return total


def write_configs(topology: Topology) -> None:
    """Write each part's configuration file."""
    config = topology.layout.config
    if not topology.layout.hash_key.exists():
        write_private_file(topology.layout.hash_key, f"{new_hash_key()}\n".encode())
    if topology.nats_url is None:
        (config / "nats.conf").write_text(_nats_conf(topology))
    for name, command, document in part_documents(topology):
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        header = (
            f"# Written by penstock at each start; try changes with: penstock {command} --config\n"
        )
        path = config / f"{name}.yaml"
        write_private_file(path, (header + text).encode())  # the NATS URL may hold a password


def part_documents(topology: Topology) -> list[tuple[str, str, dict[str, Any]]]:
    """Each part's name, its command and its configuration with the user's settings laid over it."""
    written = (
        *((part, "logd", logd_document(topology, part)) for part in topology.logds()),
        ("collector", "collector", collector_document(topology) | _hash_key(topology)),
        ("router", "router", router_document(topology) | _actions(topology)),
        ("console", "console", _console(topology)),
    )
    return [
        (name, command, merged(document, topology.overlay.get(command, {})))
        for name, command, document in written
    ]


_OF_SOURCES = ("forward", "otlp_grpc", "otlp_http")
"""Listeners of the collector's sources, which the user's settings may replace."""


def listeners(topology: Topology) -> dict[str, str]:
    """The addresses that the launch listens at, by listener.

    What is wrong with the user's settings of a part, that part says.
    """
    collector = next(one for name, _, one in part_documents(topology) if name == "collector")
    sources = collector.get("sources")
    used = {
        value
        for source in (sources if isinstance(sources, list) else ())
        for value in (source.values() if isinstance(source, Mapping) else ())
        if isinstance(value, str)
    }
    addresses = {name: topology.address(name) for name in topology.ports}
    return {
        name: address
        for name, address in addresses.items()
        if name not in _OF_SOURCES or address in used
    }


def addresses(topology: Topology) -> dict[str, str]:
    """Return the addresses that a user needs next, by name."""
    at, layout = listeners(topology), topology.layout
    found = {
        "console": f"http://{at['console']}/",
        "token": str(layout.console_token),
        "socket": str(layout.socket),
        "nats": topology.nats_shown(),
        "fetch": topology.log_servers(),
    }
    for name, scheme in (("otlp_grpc", "http://"), ("otlp_http", "http://"), ("forward", "")):
        if name in at:
            found[name] = f"{scheme}{at[name]}"
    router = next(one for name, _, one in part_documents(topology) if name == "router")
    if topology.retention_bytes is not None:
        found["retention"] = (
            f"at most {RETENTION_S // 86_400} days and {shown_bytes(topology.retention_bytes)}"
            f"{'' if topology.nodes == 1 else ' on each logd'}"
        )
    sinks = router.get("sinks")
    lake = sinks.get("lake") if isinstance(sinks, Mapping) else None
    path = lake.get("path") if isinstance(lake, Mapping) else None
    return found if path is None else {**found, "lake": str(path)}


def parts(
    topology: Topology, *, logd_ready: Callable[[str], Check], router_caught_up: Check
) -> list[Part]:
    """The processes of a launch, in the order they are shown."""
    first = () if topology.nats_url else ("nats",)
    logds = tuple(topology.logds())
    listed = [
        *(_logd_part(topology, part, first, logd_ready(part)) for part in logds),
        _daemon(topology, PartPlan("collector", after=logds, must_drain=True)),
        _daemon(
            topology,
            PartPlan(
                "router",
                after=logds,
                ready_within_ns=180 * SECOND_NS,
                catch_up_within_ns=60 * SECOND_NS,
                stop_within_ns=30 * SECOND_NS,
                must_drain=True,
            ),
            caught_up=router_caught_up,
        ),
        _daemon(topology, PartPlan("console"), module="deploy.console"),
    ]
    if topology.nats_url is None:
        listed.insert(0, _nats_part(topology))
    if topology.app is not None:
        plan = PartPlan("app", after=("collector", "router"), once=True)
        listed.append(Part(plan, topology.app, topology.layout.log("app")))
    return listed


def _nats_part(topology: Topology) -> Part:
    binary = nats_server_binary()
    assert binary is not None, "checked before the launch"
    command = (str(binary), "-c", str(topology.layout.config / "nats.conf"))
    ready = partial(is_serving, topology.admin_urls()["nats"])
    return Part(PartPlan("nats"), command, topology.layout.log("nats"), is_ready=ready)


def _logd_part(topology: Topology, part: str, after: tuple[str, ...], ready: Check) -> Part:
    plan = PartPlan(
        part, after=after, ready_within_ns=(30 if topology.nodes == 1 else 90) * SECOND_NS
    )
    return _daemon(topology, plan, module="logd", ready=ready)


def _daemon(
    topology: Topology,
    plan: PartPlan,
    *,
    module: str = "",
    ready: Check | None = None,
    caught_up: Check | None = None,
) -> Part:
    config = topology.layout.config / f"{plan.name}.yaml"
    return Part(
        plan,
        (sys.executable, "-P", "-m", f"penstock.{module or plan.name}", "--config", str(config)),
        topology.layout.log(plan.name),
        output_path=topology.layout.output(plan.name),
        is_ready=ready or partial(is_serving, topology.admin_urls()[plan.name]),
        has_caught_up=caught_up,
    )


def _nats_conf(topology: Topology) -> str:
    return (
        "# Written by penstock at each start.\n"
        "server_name: penstock\n"
        f"listen: {topology.address('nats')}\n"
        f"http: {topology.address('nats_monitor')}\n"
        f"max_payload: {NATS_PAYLOAD_BYTES_MAX}\n"
    )


def logd_document(topology: Topology, part: str) -> dict[str, Any]:
    """The configuration of one logd."""
    streams: list[dict[str, Any]] = [
        {"name": name, "subject": f"telemetry.{name}.>"} for name in STREAMS
    ]
    if topology.retention_bytes is not None:
        each = max(topology.retention_bytes // len(STREAMS), RETENTION_BYTES_MIN)
        for stream in streams:
            stream["retention"] = {"age_s": RETENTION_S, "bytes": each}
    document = {
        "node": part if topology.nodes > 1 else "logd-1",
        "data_dir": str(topology.layout.data(part)),
        # A NATS server that is not ours may belong to a JetStream, if not now then later.
        "nats": {"url": topology.nats(), "jetstream_hints": topology.nats_url is None},
        "fetch": topology.address(f"{part}_fetch"),
        "admin": topology.address(f"{part}_admin"),
        "streams": streams,
    }
    if topology.nodes == 1:
        return document
    for stream in streams:
        stream["replication_factor"] = min(topology.nodes, REPLICAS_MAX)
    initial_members = {name: topology.address(f"{name}_peer") for name in topology.logds()}
    return document | {
        "cluster": {
            "name": CLUSTER,
            "peer": initial_members[part],
            "initial_members": initial_members,
        }
    }


def _hash_key(topology: Topology) -> dict[str, Any]:
    """The key of this deployment, unless its operator gives the collector another one."""
    given = topology.overlay.get("collector", {}).get("sensitive") or {}
    has_one = isinstance(given, dict) and "hash_key" in given
    path = str(topology.layout.hash_key)
    return {} if has_one else {"sensitive": {"hash_key": {"file": path}}}


def collector_document(topology: Topology) -> dict[str, Any]:
    """The collector's configuration."""
    layout = topology.layout
    services = {"nats": "nats-server"} if topology.nats_url is None else {}
    services |= dict.fromkeys(topology.logds(), "penstock.logd")
    services |= {
        name: f"penstock.{name}" for name in ("collector", "router", "console", "launcher")
    }
    files = [
        {
            "name": f"{name}-log",
            "type": "file",
            "include": [str(layout.log(name))],
            "service": service,
        }
        for name, service in services.items()
    ]
    return {
        "data_dir": str(layout.data("collector")),
        "nats": {"url": topology.nats()},
        "admin": topology.address("collector_admin"),
        "resource": {"deployment.environment.name": "demo" if topology.app else "host"},
        "sources": [
            {"type": "unix", "path": str(layout.socket)},
            {"type": "forward", "listen": topology.address("forward")},
            {
                "type": "otlp",
                "grpc": topology.address("otlp_grpc"),
                "http": topology.address("otlp_http"),
            },
            {"type": "host_metrics", "interval_s": 5 if topology.app else 15},
            *files,
        ],
    }


def router_document(topology: Topology) -> dict[str, Any]:
    """The default job; in the demo, with a second sink, whose records the report compares."""
    layout = topology.layout
    routes: list[dict[str, Any]] = [{"name": "everything", "sinks": ["lake"]}]
    retention = {"max_age_days": LAKE_DAYS}
    lake = {"type": "parquet", "path": str(layout.lake), "retention": retention}
    sinks: dict[str, Any] = {"lake": lake}
    if topology.app:
        routes.append({"name": "problems", "where": PROBLEMS, "sinks": ["problems"]})
        sinks["problems"] = {"type": "console"}
    return {
        "job": "lake",
        "logd": topology.log_servers(),
        "streams": list(STREAMS),
        "starting_offsets": "earliest",
        "checkpoint_dir": str(layout.router_checkpoint),
        "admin": topology.address("router_admin"),
        "trigger": {"interval_s": 2},
        "routes": routes,
        "sinks": sinks,
    }


def _actions(topology: Topology) -> dict[str, Any]:
    """The token of the console's actions is the token of the router's."""
    return {"actions_token_file": str(topology.layout.console_token)}


def _console(topology: Topology) -> dict[str, Any]:
    urls = topology.admin_urls()
    return {
        "listen": topology.address("console"),
        "admin": topology.address("console_admin"),
        "parts": {name: url for name, url in urls.items() if name != "console"},
        "logd": topology.log_servers(),
        "token_file": str(topology.layout.console_token),
        "history": {"directory": str(topology.layout.data("console"))},
        "search": {"job_files": [str(topology.layout.config / "router.yaml")]},
    }
