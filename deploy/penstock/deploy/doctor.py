"""`penstock doctor`: check this host, a launch, or what a configuration needs."""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from penstock.base.clock import SystemClock
from penstock.base.errors import ConfigError, ExitCode, ServiceError
from penstock.base.extras import extra_of, install_command
from penstock.base.pluralize import pluralize
from penstock.deploy.checks import (
    Finding,
    Verdict,
    check_certificate,
    check_disk,
    check_java,
    check_nats,
    check_port,
    check_reachable,
    read_mounts,
)
from penstock.deploy.up.layout import Layout, default_root, read_running
from penstock.deploy.up.overlay import LAUNCHER, OWN_KEYS
from penstock.deploy.up.preflight import check_host, check_launch
from penstock.deploy.up.probe import get_json
from penstock.deploy.up.topology import launch_topology
from penstock.service.config import load_config, read_yaml

_MODELS: Final[Mapping[str, tuple[str, str]]] = {
    "router": ("penstock.router.job.config", "JobConfig"),
    "collector": ("penstock.collector.config", "CollectorConfig"),
    "console": ("penstock.deploy.console.config", "ConsoleConfig"),
    "logd": ("penstock.logd.config", "LogdConfig"),
}
_KEYS: Final = {
    "router": {"job"}, "collector": {"sources"}, "console": {"listen", "parts"},
}  # fmt: skip
"""The keys that tell a part's configuration file; a file without them is logd's."""

_SIGNS: Final = {Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.WRONG: "WRONG"}


def run_checks(
    *,
    directory: Path | None,
    nats_url: str | None,
    nodes: int,
    ports_from: int | None,
    configs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Make the checks, show what they found, and exit: 1 when something is wrong, else 0."""
    if configs:
        findings = [*check_host(nodes, missing=Verdict.WARNING)]
        findings += [found for path in configs for found in _configuration(path)]
    else:
        layout = Layout((directory or default_root()).absolute())
        findings = [*_launch(layout, nats_url, nodes, ports_from)]
    if as_json:
        fields = ("about", "verdict", "found", "fix")
        shown = [{field: getattr(one, field) for field in fields} for one in findings]
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        _print(findings)
    wrong = any(one.verdict is Verdict.WRONG for one in findings)
    sys.exit(ExitCode.FAILURE if wrong else ExitCode.OK)


def _print(findings: list[Finding]) -> None:
    width = max(len(one.about) for one in findings)
    for one in findings:
        found = one.found.replace("\n", f"\n{'':<8} {'':<{width}}  ")
        click.echo(f"{_SIGNS[one.verdict]:<8} {one.about:<{width}}  {found}")
        if one.fix:
            click.echo(f"{'':<8} {'':<{width}}  fix: {one.fix}")
    counts = {verdict: sum(one.verdict is verdict for one in findings) for verdict in Verdict}
    warnings = pluralize(counts[Verdict.WARNING], "warning")
    click.echo(f"{counts[Verdict.WRONG]} wrong, {warnings}")


def _launch(
    layout: Layout, nats_url: str | None, nodes: int, ports_from: int | None
) -> Iterator[Finding]:
    """Check what `penstock up` would need in a directory, or the parts that run there."""
    try:
        running = read_running(layout)
        topology = launch_topology(layout, nats_url=nats_url, nodes=nodes, ports_from=ports_from)
    except ConfigError as error:
        yield from check_host(nodes, missing=Verdict.WRONG)
        yield check_disk("disk", layout.root, read_mounts())
        yield Finding("directory", Verdict.WRONG, error.reason, error.fix)
        return
    if running is None:
        yield from check_launch(topology)
        return
    yield from check_host(nodes, missing=Verdict.WRONG)
    yield check_disk("disk", layout.root, read_mounts())
    for name, url in running["parts"].items():
        yield check_part(name, url, layout.log(name))


def check_part(name: str, url: str, log: Path) -> Finding:
    """Return a part's health by its answer; nats-server says `status: ok`."""
    answer = asyncio.run(get_json(f"{url}/healthz"))
    if answer is None:
        fix = f"read its log, {log}; the launcher starts it again when it ends"
        return Finding(name, Verdict.WRONG, f"does not answer at {url}", fix)
    health = str(answer.get("health") or answer.get("status"))
    if health in ("ready", "ok"):
        return Finding(name, Verdict.OK, health)
    reasons = "; ".join(answer.get("reasons", ())) or "it names no reason"
    verdict = Verdict.WARNING if health == "degraded" else Verdict.WRONG
    fix = f"find it in docs/howto/recover.md; its log is {log}"
    return Finding(name, verdict, f"{health}: {reasons}", fix)


def _configuration(path: Path) -> Iterator[Finding]:
    """A part's configuration, and what it names: directories, listeners, servers, certificates."""
    part = "all"
    try:
        document = read_yaml(path)
        if document and document.keys() <= {*OWN_KEYS, LAUNCHER}:
            fix = "name a part's own; `penstock up --config` checks this one when it starts"
            what = f"{path}: has sections for the parts, as `penstock up --config` takes them"
            yield Finding("configuration", Verdict.WRONG, what, fix)
            return
        part = next((name for name, keys in _KEYS.items() if keys & document.keys()), "logd")
        module, name = _MODELS[part]
        model: Any = getattr(importlib.import_module(module), name)
        config = load_config(model, path, env_prefix=f"PENSTOCK_{part.upper()}")
    except ServiceError as error:
        yield Finding("configuration", Verdict.WRONG, error.reason, error.fix)
        return
    except ModuleNotFoundError as error:
        fix = install_command(extra_of(str(error.name), part=part))
        yield Finding("configuration", Verdict.WRONG, f"{path}: needs {error.name}", fix)
        return
    yield Finding("configuration", Verdict.OK, f"{path} is a valid configuration of {part}")
    if part == "console":
        yield from _console(config)
        return
    directory = config.checkpoint_dir if part == "router" else config.data_dir
    yield check_disk("disk", directory, read_mounts())
    yield from {"router": _router, "collector": _collector, "logd": _logd}[part](config)


def _router(config: Any) -> Iterator[Finding]:
    yield check_java()
    yield check_port("port admin", config.admin)
    for address in config.logd.split(","):
        yield check_reachable("logd", address.strip())


def _collector(config: Any) -> Iterator[Finding]:
    yield check_port("port admin", config.admin)
    yield check_nats(config.nats.url)


def _console(config: Any) -> Iterator[Finding]:
    yield check_port("port listen", config.listen)
    if config.admin is not None:
        yield check_port("port admin", config.admin)
    for address in config.logd.split(",") if config.logd else ():
        yield check_reachable("logd", address.strip())
    for name, url in config.parts.items():
        server = urlsplit(url)
        standard = 443 if server.scheme == "https" else 80
        try:
            address = f"{server.hostname}:{server.port or standard}"
        except ValueError:
            what = f"{url} is not an address"
            yield Finding(f"part {name}", Verdict.WRONG, what, "write it as http://HOST:PORT")
            continue
        yield check_reachable(f"part {name}", address)
    if config.tls is not None:
        yield check_certificate(config.tls.cert_file, SystemClock())


def _logd(config: Any) -> Iterator[Finding]:
    yield check_port("port fetch", config.fetch)
    yield check_port("port admin", config.admin)
    for server in config.nats.access().servers:
        host = f"[{server.host}]" if ":" in server.host else server.host
        yield check_nats(f"nats://{host}:{server.port}")
    certificates = [] if config.tls is None else [config.tls.cert_file]
    if config.cluster is not None:
        yield check_port("port peer", config.cluster.peer)
        certificates += [] if config.cluster.tls is None else [config.cluster.tls.cert_file]
        for node, address in config.cluster.initial_members.items():
            if node != config.node:
                yield check_reachable(f"node {node}", address)
    for path in certificates:
        yield check_certificate(path, SystemClock())
