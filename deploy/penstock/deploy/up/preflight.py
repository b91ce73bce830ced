"""The checks before a launch, for `penstock up` and `penstock doctor`."""

import resource
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from penstock.base.clock import SystemClock
from penstock.base.errors import ConfigError, ExitCode, ServiceError, UnavailableError
from penstock.deploy.checks import (
    Finding,
    Verdict,
    check_clock,
    check_disk,
    check_java,
    check_memory,
    check_nats,
    check_nats_server,
    check_open_files,
    check_port,
    check_socket,
    check_software,
    check_systemd,
    nats_server_binary,
    read_mounts,
)
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.overlay import check_overlay
from penstock.deploy.up.topology import Topology, listeners


def read_overlay(path: Path) -> dict[str, Any]:
    """A user's own settings for the parts, see `penstock.deploy.up.overlay`.

    Raises:
        ConfigError: The file is not there, no YAML, or sets what is not the user's to set.
    """
    from penstock.service.config import read_yaml  # with pydantic, 6 MiB that few launches need

    document = read_yaml(path)
    try:
        check_overlay(document)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", fix="correct the file") from None
    return document


class NotStartedError(ServiceError):
    """Something keeps a launch from working: nothing was started.

    Args:
        layout: The launch's directory.
        wrong: The findings that keep it from working.
    """

    def __init__(self, layout: Layout, wrong: Sequence[Finding]) -> None:
        if len(wrong) == 1:
            super().__init__(f"{wrong[0].about}: {wrong[0].found}", fix=wrong[0].fix)
        else:
            lines = "".join(
                "".join(f"\n    {one.about}: {one.found}" for one in alike) + f"\n      fix: {fix}"
                for fix, alike in groupby(wrong, key=attrgetter("fix"))
            )
            check = f"penstock doctor --dir {shlex.quote(str(layout.root))}"
            super().__init__(
                f"{len(wrong)} checks failed:{lines}",
                fix=f"make the corrections above, then check with: {check}",
            )
        codes = {one.exit_code for one in wrong}
        self.exit_code = ExitCode.CONFIG if ExitCode.CONFIG in codes else ExitCode.UNAVAILABLE


def check_host(nodes: int, *, missing: Verdict) -> Iterator[Finding]:
    """Check what every part needs of this host.

    Args:
        nodes: Number of logd nodes.
        missing: Severity of a missing library.
    """
    yield from check_software(missing)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield check_open_files(hard, hard)  # every part raises its own limit as far as it may
    yield check_memory(Path("/proc/meminfo").read_text(), nodes)
    yield check_clock(SystemClock())
    yield check_systemd(shutil.which("systemctl"))


def check_launch(topology: Topology) -> Iterator[Finding]:
    """Check everything that `penstock up` needs and that is not running yet."""
    layout = topology.layout
    yield from check_host(topology.nodes, missing=Verdict.WRONG)
    yield check_java()
    yield check_disk("disk", layout.root, read_mounts())
    yield check_socket(layout.socket)
    yield check_nodes(layout, topology.nodes)
    if topology.nats_url is None:
        yield check_nats_server(nats_server_binary())
    else:
        yield check_nats(topology.nats_url)
    for name, address in listeners(topology).items():
        yield _check_listener(name, address)


def _check_listener(name: str, address: str) -> Finding:
    found = check_port(f"port {name.replace('_', ' ')}", address)
    if found.verdict is Verdict.OK:
        return found
    fix = (
        "stop the program that uses it (ss -ltnp shows it), or give this appliance its own ports:"
        " --ports-from 20000"
    )
    return replace(found, fix=fix)


def require_launch(topology: Topology) -> list[Finding]:
    """Make the checks of `check_launch`; return the warnings.

    Raises:
        NotStartedError: A check found something wrong.
    """
    findings = list(check_launch(topology))
    wrong = [one for one in findings if one.verdict is Verdict.WRONG]
    if wrong:
        raise NotStartedError(topology.layout, wrong)
    return [one for one in findings if one.verdict is Verdict.WARNING]


def check_nodes(layout: Layout, nodes: int) -> Finding:
    """Check that a directory with streams has those of as many logd: others would miss theirs."""
    held = 1 if layout.data("logd").exists() else len([*layout.root.glob("logd-[0-9]")])
    if held in (0, nodes):
        return Finding("nodes", Verdict.OK, str(nodes))
    found = f"{layout.root} holds the streams of {held} logd, not of {nodes}"
    fix = f"start with --nodes {held}, name another directory with --dir, or remove this one"
    return Finding("nodes", Verdict.WRONG, found, fix, ExitCode.CONFIG)


def require_writable(path: Path) -> None:
    """Check that a result can be written, before a minute is spent on it.

    Raises:
        ConfigError: It cannot.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}",
            fix="name a file in a directory that exists and that you can write to with --json",
        ) from None


def example_app(layout: Layout) -> tuple[str, ...]:
    """The command that runs the example app.

    Raises:
        UnavailableError: This is an installed wheel, which holds no examples.
    """
    app = Path(__file__).resolve().parents[4] / "examples" / "checkout_app.py"
    if not app.is_file():
        raise UnavailableError(
            "the example app is not part of the installed package",
            fix="run the demo from a clone of the repository: make demo",
        )
    return (sys.executable, str(app), "--socket", str(layout.socket), "--seconds", "0")
