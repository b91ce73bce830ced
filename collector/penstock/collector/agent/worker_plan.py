"""The part of each worker process in one configuration.

The first worker has the data directory itself and every source. Each other worker has a directory
below `workers/`, and the sources whose address several processes can listen on (SO_REUSEPORT): the
kernel gives each connection, and each sender's datagrams, to one of them. If there are fewer
workers than before, the left-over directories are delivered and then left alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.base.sockets import split_host_port
from penstock.collector.agent.admin import SOCKET_NAME
from penstock.collector.config import CollectorConfig, ReceiveSection
from penstock.collector.limits import RECEIVE_BYTES_MIN
from penstock.collector.sources.settings import SourceSettings
from penstock.service import ConfigError, HostPort

WORKERS: Final = "workers"
WORKERS_MAX: Final = 64
_SPOOL_BYTES_MIN: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part; `index` counts from 0 to `count` - 1, or is above for one that drains.

    Attributes:
        supervisor: The process that started it; 0 where nobody has.
    """

    index: int
    count: int
    supervisor: int = 0

    @property
    def receives(self) -> bool:
        """True if it has sources; otherwise it only delivers what an earlier run left."""
        return self.index < self.count

    def takes(self, source: SourceSettings) -> bool:
        """Return whether the worker runs a source of the configuration."""
        return self.receives and (self.index == 0 or source.can_be_shared)


def directory_of(data_dir: Path, index: int) -> Path:
    """A worker's data directory."""
    return data_dir / WORKERS / str(index) if index else data_dir


def control_of(data_dir: Path, index: int) -> Path:
    """A worker's own admin socket; that of them all is where that of one process would be."""
    return directory_of(data_dir, index) / (SOCKET_NAME if index else "worker-0.sock")


def left_behind(data_dir: Path, count: int) -> list[int]:
    """Workers of earlier runs that this one does not have."""
    try:
        names = [path.name for path in (data_dir / WORKERS).iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isdecimal() and int(name) >= max(count, 1))


def config_of(config: CollectorConfig, share: Share) -> CollectorConfig:
    """A worker's configuration; it names all sources, as transforms do: see `Share.takes`.

    The one worker of a supervisor that also drains earlier ones' spools has an admin endpoint of
    its own, too: the configured one is the supervisor's.

    Raises:
        ConfigError: A source's address cannot be shared.
    """
    sources = [_shared(source) if share.count > 1 else source for source in config.sources]
    if share.receives and not any(share.takes(source) for source in sources):
        raise ConfigError(
            "no source of the configuration can be shared by workers",
            fix="run one; sources that listen on ports can be shared",
        )
    spool = config.spool.model_copy(
        update={
            name: max(_SPOOL_BYTES_MIN, getattr(config.spool, name) // share.count)
            for name in ("max_bytes", "max_urgent_bytes")
        }
    )
    access = config.admin_access
    return config.model_copy(
        update={
            "receive": _part_of(config.receive, sources, share.count),
            "data_dir": directory_of(config.data_dir, share.index),
            "admin": "127.0.0.1:0",
            "admin_access": access and access.model_copy(update={"cert_file": None}),
            "admin_socket": control_of(config.data_dir, share.index),
            "sources": sources,
            "spool": spool,
        }
    )


def _part_of(receive: ReceiveSection, sources: list[SourceSettings], count: int) -> ReceiveSection:
    """Return a worker's part of the receive budget; the largest allowed request always fits."""
    least = max((RECEIVE_BYTES_MIN, *(one.max_request_bytes for one in sources)))
    part = {name: max(least, value // count) for name, value in receive.model_dump().items()}
    return receive.model_copy(update=part)


def _shared(source: SourceSettings) -> SourceSettings:
    if not source.can_be_shared:
        return source
    for key in ("listen", "grpc", "http", "udp", "tcp"):
        address: HostPort | None = getattr(source, key, None)
        if address is not None and split_host_port(address)[1] == 0:
            raise ConfigError(
                f"source {source.name}: {key}: workers cannot share port 0, which is any free one",
                fix="name the port",
            )
    return source.model_copy(update={"reuse_port": True})
