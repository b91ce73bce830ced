"""The directory of one launch, claimed by one launcher at a time."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.base.errors import ConfigError, UnavailableError
from penstock.base.files import atomic_write
from penstock.specs.environment import SOCKET_VARIABLE

FREE_BYTES_MIN = 512 * 1024 * 1024
_SOCKET_PATH_BYTES_MAX = 100  # sun_path holds 108 (unix(7)); the collector may add a suffix


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths inside a launch's directory."""

    root: Path

    @property
    def config(self) -> Path:
        """Configuration files, written again at each start."""
        return self.root / "config"

    @property
    def logs(self) -> Path:
        """The log of each process."""
        return self.root / "logs"

    @property
    def lake(self) -> Path:
        """Parquet files, by kind."""
        return self.root / "lake"

    @property
    def running(self) -> Path:
        """Names the processes of a launch while it runs."""
        return self.root / "running.json"

    @property
    def ports(self) -> Path:
        """Says which ports this appliance has chosen; missing: the documented ones."""
        return self.root / "ports.json"

    @property
    def room(self) -> Path:
        """The free room of the disk in the last day, see `penstock.deploy.disk_room`."""
        return self.root / "room.json"

    def data(self, part: str) -> Path:
        """A part's own state."""
        return self.root / part

    @property
    def router_checkpoint(self) -> Path:
        """The router's checkpoint: offsets, and the sinks' own state."""
        return self.data("router") / "checkpoint"

    @property
    def console_token(self) -> Path:
        """Holds the token for actions in the console."""
        return self.root / "console.token"

    @property
    def hash_key(self) -> Path:
        """The key that the collector makes pseudonyms with; made at the first start."""
        return self.root / "pseudonyms.key"

    def log(self, part: str) -> Path:
        """A part's log file."""
        return self.logs / f"{part}.log"

    def output(self, part: str) -> Path:
        """The file of a part's output for people; the collector does not read it."""
        return self.logs / f"{part}.out"

    @property
    def socket(self) -> Path:
        """The collector's Unix socket: here, or in /tmp where this path is too long for one."""
        path = self.root / "collector.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
            return path
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"penstock-{name}.sock"


def default_root() -> Path:
    """Return the directory where `penstock up` keeps its state: $XDG_STATE_HOME/penstock."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "penstock"


@contextmanager
def claimed(layout: Layout, *, free_bytes_min: int = FREE_BYTES_MIN) -> Iterator[None]:
    """Make the directory and hold it for this process.

    Args:
        layout: The layout of the directory.
        free_bytes_min: Room that the disk must have.

    Raises:
        ConfigError: It cannot be written to.
        UnavailableError: Another launcher holds it, or the disk is nearly full.
    """
    try:
        for path in (layout.root, layout.config, layout.logs):
            path.mkdir(parents=True, exist_ok=True)
        lock = (layout.root / "launcher.lock").open("a+")
    except OSError as error:
        raise unusable(layout, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(
                f"{layout.root}: another penstock runs here (process {_holder(layout)})",
                fix="stop it, or name another directory with --dir",
            ) from None
        layout.running.unlink(missing_ok=True)  # of a launcher that was killed
        require_space(layout.root, free_bytes_min)
        try:
            yield
        finally:
            layout.running.unlink(missing_ok=True)


def unusable(layout: Layout, error: OSError) -> ConfigError:
    """The error for a directory that this user cannot use."""
    path = error.filename or layout.root
    return ConfigError(
        f"{path}: cannot be used: {error.strerror}",
        fix="name a directory that you can write to with --dir, or run as its owner",
    )


def require_space(root: Path, free_bytes_min: int = FREE_BYTES_MIN) -> None:
    """Check that the disk has room to begin with.

    Raises:
        UnavailableError: It has not.
    """
    free = shutil.disk_usage(root).free
    if free < free_bytes_min:
        raise UnavailableError(
            f"{root}: {free // 1024**2} MiB are free on this disk;"
            f" Penstock does not start with less than {free_bytes_min // 1024**2} MiB",
            fix="free space, or name a directory on another disk with --dir",
        )


def write_running(
    layout: Layout,
    parts: dict[str, str],
    *,
    cluster: str | None = None,
    logd: str | None = None,
    addresses: Mapping[str, str] | None = None,
    ready: bool = False,
) -> None:
    """Say what runs here, for `penstock status` and `penstock console`.

    Args:
        layout: Layout of the directory.
        parts: Admin URLs.
        cluster: A cluster's fetch addresses.
        logd: Those of every logd, also of a standalone one.
        addresses: Addresses that a user needs next, by name.
        ready: Every part has been ready, and the launcher has printed how each is reached.
    """
    document: dict[str, Any] = {"pid": os.getpid(), "parts": parts, "ready": ready}
    document |= {} if cluster is None else {"cluster": cluster}
    document |= {} if logd is None else {"logd": logd}
    document |= {} if addresses is None else {"addresses": dict(addresses)}
    atomic_write(layout.running, json.dumps(document, indent=2) + "\n", durable=False)


def read_running(layout: Layout) -> dict[str, Any] | None:
    """Read what `write_running` wrote; None when no live launcher stands behind it.

    Raises:
        ConfigError: It is not for this user to read.
    """
    try:
        document = json.loads(layout.running.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise unusable(layout, error) from None
    if not isinstance(document, dict) or not {"pid", "parts"} <= document.keys():
        return None
    return document if Path(f"/proc/{document['pid']}").exists() else None


_LABELS = {
    "console": "console",
    "token": "  for actions",
    "socket": "apps",
    "otlp_grpc": "OTLP gRPC",
    "otlp_http": "OTLP HTTP",
    "forward": "Fluent forward",
    "nats": "NATS",
    "fetch": "logd fetch",
    "lake": "lake",
    "retention": "streams keep",
}
"""Labels of the addresses that `write_running` may name, in the order in which they are shown."""


def address_lines(addresses: Mapping[str, str]) -> list[str]:
    """A line for each address that a user needs next, with what it is for in front."""
    width = max(map(len, _LABELS.values()))
    shown = {
        "token": "the token in {}",
        "socket": f"{SOCKET_VARIABLE}={{}}",
        "otlp_grpc": "OTEL_EXPORTER_OTLP_ENDPOINT={}",
    }
    return [
        f"  {label:<{width}}  {shown.get(name, '{}').format(addresses[name])}"
        for name, label in _LABELS.items()
        if name in addresses
    ]


def read_ports_from(layout: Layout) -> int | None:
    """The first port of this appliance's own, as an earlier start was told; None: never.

    Raises:
        ConfigError: The file is damaged.
    """
    try:
        document = json.loads(layout.ports.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unusable(layout, error) from None
    except ValueError:
        document = None
    number = document.get("ports_from") if isinstance(document, dict) else None
    if not isinstance(number, int):
        raise ConfigError(
            f"{layout.ports}: it holds no port number",
            fix="remove it, and start with --ports-from PORT again",
        )
    return number


def write_ports_from(layout: Layout, number: int) -> None:
    """Have later starts in this directory take the same ports."""
    atomic_write(layout.ports, json.dumps({"ports_from": number}) + "\n")


def _holder(layout: Layout) -> str:
    running = read_running(layout)
    return str(running["pid"]) if running else "still starting"
