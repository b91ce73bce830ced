"""Who does what when several collectors share a configuration."""

from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent.worker_plan import Share, config_of, left_behind
from penstock.collector.config import CollectorConfig
from penstock.collector.limits import MIB, RECEIVE_BYTES_MIN
from penstock.service import ConfigError

SOURCES: list[dict[str, Any]] = [
    {"type": "unix", "path": "/run/x.sock"},
    {"type": "otlp", "grpc": "127.0.0.1:4317", "http": None},
    {"type": "forward", "listen": "127.0.0.1:24224"},
    {"type": "forward", "name": "local", "path": "/run/f.sock"},
    {"type": "syslog", "udp": "127.0.0.1:514"},
    {"type": "statsd"},
]


def config(data_dir: Path, sources: list[dict[str, Any]] = SOURCES) -> CollectorConfig:
    return CollectorConfig.model_validate({"data_dir": str(data_dir), "sources": sources})


def test_one_alone_is_as_configured(tmp_path: Path) -> None:
    own = config(tmp_path)
    alone = config_of(own, Share(0, 1))
    assert (alone.data_dir, alone.spool, alone.sources) == (own.data_dir, own.spool, own.sources)
    assert alone.admin == "127.0.0.1:0", "the configured one is its supervisor's"


def test_network_sources_are_shared_and_the_first_has_the_others_too(tmp_path: Path) -> None:
    first, second = (config_of(config(tmp_path), Share(index, 2)) for index in (0, 1))
    assert all(Share(0, 2).takes(source) for source in first.sources)
    taken = [source for source in second.sources if Share(1, 2).takes(source)]
    assert [source.name for source in taken] == ["otlp", "forward", "syslog"]
    assert len(second.sources) == len(SOURCES), "transforms may name any"
    assert (first.data_dir, second.data_dir) == (tmp_path, tmp_path / "workers" / "1")
    assert {getattr(source, "reuse_port", None) for source in taken} == {True}
    assert first.spool.max_bytes == config(tmp_path).spool.max_bytes // 2
    assert first.receive.max_bytes == config(tmp_path).receive.max_bytes // 2


def test_every_worker_may_receive_the_largest_request(tmp_path: Path) -> None:
    large = {"type": "otlp", "max_message_bytes": 48 * MIB}
    many = config_of(config(tmp_path, [large]), Share(0, 8)).receive
    assert (many.max_bytes, many.max_source_bytes) == (48 * MIB, 48 * MIB)
    few = config_of(config(tmp_path), Share(0, 64)).receive
    assert (few.max_bytes, few.max_source_bytes) == (RECEIVE_BYTES_MIN, RECEIVE_BYTES_MIN)


def test_workers_share_what_may_be_received_without_an_otlp_source_too(tmp_path: Path) -> None:
    syslog = {"type": "syslog", "udp": "127.0.0.1:514"}
    own = config(tmp_path, [syslog])
    part = config_of(own, Share(0, 2)).receive
    assert part.max_bytes == own.receive.max_bytes // 2


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ([{"type": "syslog", "udp": "127.0.0.1:0"}], "port 0"),
        ([{"type": "stdin"}], "no source"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    tmp_path: Path, sources: list[dict[str, Any]], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        config_of(config(tmp_path, sources), Share(1, 2))


def test_what_fewer_workers_leave_behind_is_found(tmp_path: Path) -> None:
    assert left_behind(tmp_path, 4) == []
    for name in ("1", "2", "10", "x"):
        (tmp_path / "workers" / name).mkdir(parents=True)
    assert left_behind(tmp_path, 2) == [2, 10]
    assert left_behind(tmp_path, 1) == [1, 2, 10]
    assert not Share(10, 2).receives


def test_a_data_directory_that_is_a_file_leaves_nothing_behind(tmp_path: Path) -> None:
    """What is wrong with it is said by who opens it."""
    (tmp_path / "file").touch()
    assert left_behind(tmp_path / "file", 1) == []
