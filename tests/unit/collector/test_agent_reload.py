"""A reload whose new configuration runs, and what can no longer refuse it."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from nats.errors import ConnectionClosedError
from typing_extensions import override

from penstock.collector.agent import Agent
from penstock.collector.config import CollectorConfig
from penstock.collector.operating import Operating
from penstock.collector.publisher import Publisher
from penstock.collector.rules import rules_of
from penstock.collector.settings import digest_of_tables, graph_of, tables_of
from penstock.service import ConfigError, Health
from tests.support.waiting import wait_until_async


async def test_what_runs_is_not_refused_because_a_file_for_people_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"type": "syslog", "name": "appliance", "udp": "127.0.0.1:0"}
    document = {"data_dir": tmp_path, "sources": [source]}
    before = CollectorConfig.model_validate(document)
    after = CollectorConfig.model_validate({**document, "resource": {"service.name": "other"}})
    agent = Agent(before, Path("collector.yaml"), load=lambda _: after, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    agent._recover()
    (tmp_path / "endpoints.json").mkdir()  # as on a full disk, no file can be written there
    report = await agent.reload()
    assert (report.result, report.error, report.generation) == ("applied", "", 2)
    again = await agent.reload()
    assert again.result == "unchanged"


async def test_a_table_that_was_written_anew_is_read_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration says the same, and its file of owners something else."""
    table = tmp_path / "owners.csv"
    table.write_text("service,owner\nshop,ann\n")
    tables = [{"key": 'resource["service.name"]', "file": table, "column": "service"}]
    transforms = {"own": {"type": "enrich", "inputs": ["stdin"], "tables": tables}}
    config = CollectorConfig.model_validate(
        {
            "data_dir": tmp_path,
            "sources": [{"type": "stdin", "service": "shop"}],
            "transforms": transforms,
        }
    )
    agent = Agent(config, Path("collector.yaml"), load=lambda _: config, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    assert (await agent.reload()).result == "unchanged"
    table.write_text("service,owner\nshop,bob\n")
    report = await agent.reload(digest="d1")  # as a worker is asked
    assert (report.result, report.keys) == ("applied", ("transforms",))
    rows = tables_of(agent._engine.pipeline.graph)
    assert rows == {"own": [{"shop": {"owner": "bob"}}]}
    table.write_text("service,owner\nshop,cid\nshop,dan\n")
    assert "repeats the service" in (await agent.reload()).error
    report = await agent.reload(undo=2)  # another worker read what is half written, and refused
    assert (report.result, report.keys) == ("applied", ("transforms",))
    rows = tables_of(agent._engine.pipeline.graph)
    assert rows == {"own": [{"shop": {"owner": "ann"}}]}
    table.write_text("service,owner\nshop,eve\n")
    digest = f"d1-{digest_of_tables(graph_of(config))}"
    table.write_text("service,owner\nshop,fay\n")
    refused = await agent.reload(digest=digest)
    assert (refused.result, refused.generation) == ("refused", 3)
    assert "changed after another worker read it" in refused.error
    table.write_text("service,owner\nshop,eve\n")
    assert (await agent.reload(digest=digest)).result == "applied"


async def test_a_hash_key_in_a_file_is_read_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("k1:0123456789abcdef\n")
    config = CollectorConfig.model_validate(
        {
            "data_dir": tmp_path,
            "sources": [{"type": "stdin", "service": "shop"}],
            "sensitive": {"hash_key": {"file": str(file)}},
        }
    )
    agent = Agent(config, Path("collector.yaml"), load=lambda _: config, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    assert (await agent.reload()).result == "unchanged"
    digest = f"d1-{digest_of_tables(graph_of(config))}"
    file.write_text("k2:0123456789abcdef\n")
    refused = await agent.reload(digest=digest)  # another worker read the old key
    assert "or of the hash key changed after another worker read it" in refused.error
    report = await agent.reload()
    assert (report.result, report.keys) == ("applied", ("sensitive",))
    file.write_text("k2:short\n")
    refused = await agent.reload()
    assert "sensitive.hash_key" in refused.error
    assert str(file) in refused.error


async def test_old_tables_are_held_only_while_another_worker_may_refuse_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have 100,000 rows each."""
    table = tmp_path / "owners.csv"
    table.write_text("service,owner\na shop,0\n")
    tables = [{"key": "body", "file": table, "column": "service"}]
    config = CollectorConfig.model_validate(
        {
            "data_dir": tmp_path,
            "sources": [{"type": "stdin"}],
            "transforms": {"own": {"type": "enrich", "inputs": ["stdin"], "tables": tables}},
        }
    )
    agent = Agent(config, Path("collector.yaml"), load=lambda _: config, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)

    def held() -> set[str]:
        """The owners of all tables that there are in memory."""
        agent._engine.pipeline.retired.clear()  # as once what they created is spooled
        gc.collect()
        rows = (one for one in gc.get_objects() if isinstance(one, dict) and "a shop" in one)
        return {row["owner"] for one in rows if isinstance(row := one["a shop"], dict)}

    async def reload(owner: str, **asked: Any) -> set[str]:
        table.write_text(f"service,owner\na shop,{owner}\n")
        assert (await agent.reload(**asked)).result == "applied"
        return held()

    assert held() == {"0"}
    assert await reload("1") == {"1"}
    assert await reload("2", digest="d1") == {"1", "2"}
    assert await reload("3") == {"3"}
    monkeypatch.setattr("penstock.collector.agent.UNDO_S", 0.01)
    await reload("4", digest="d1")
    await wait_until_async(lambda: held() == {"4"})


async def test_signals_that_come_again_before_the_file_is_read_are_one_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storm of them must not be worked off one by one: a stop would wait behind it."""
    read: list[str] = []
    source = {"type": "syslog", "udp": "127.0.0.1:0"}
    configs = [
        CollectorConfig.model_validate(
            {"data_dir": tmp_path, "sources": [source], "resource": {"n": str(number)}}
        )
        for number in range(3)
    ]

    def load(_: str | None) -> CollectorConfig:
        read.append("read")
        return configs[len(read)]

    agent = Agent(configs[0], Path("c.yaml"), load=load, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    async with agent._reloading:  # one is being worked at
        for _ in range(50):
            agent._on_hangup()
        assert len(agent._asked) == 1
        await asyncio.sleep(0)
    await asyncio.gather(*agent._asked)
    assert (read, agent._reloads.counts["applied"]) == (["read"], 1)
    agent._on_hangup()
    await asyncio.gather(*agent._asked)
    assert (len(read), agent._config.resource) == (2, {"n": "2"})


async def test_what_is_read_again_is_what_the_others_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of several processes reads the files itself; the digest is of what the first read."""
    config = CollectorConfig.model_validate({"data_dir": tmp_path, "sources": [{"type": "stdin"}]})

    def load(digest: str | None) -> CollectorConfig:
        if digest is not None:
            raise ConfigError(f"not {digest}", fix="reload again")
        return config

    agent = Agent(config, Path("collector.yaml"), load=load, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    engine = agent._engine
    operating = Operating(agent.reload, engine.replayer, engine.pipeline.taps, agent._reporter.now)
    results = [
        line["report"]["result"]
        for request in ({}, {"digest": "d1"})
        async for line in operating.reload(request)
    ]
    assert results == ["unchanged", "refused"]
    with pytest.raises(ValueError, match="digest must be a text"):
        await anext(operating.reload({"digest": 1}))


class _Connected(Publisher):
    """Connects to nobody, and fails to leave."""

    @override
    async def connect(self, name: str, timeout_s: float, *, needed: bool = True) -> None: ...

    @override
    async def leave(self) -> None:
        raise ConnectionClosedError


async def test_what_runs_is_not_refused_because_the_connection_before_cannot_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"data_dir": tmp_path, "sources": [{"type": "syslog", "udp": "127.0.0.1:0"}]}
    before = CollectorConfig.model_validate(document)
    nats = {"url": "nats://127.0.0.1:1"}
    after = CollectorConfig.model_validate({**document, "nats": nats})
    monkeypatch.setattr("penstock.collector.agent.Publisher", _Connected)
    agent = Agent(before, Path("collector.yaml"), load=lambda _: after, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    report = await agent.reload()
    assert (report.result, report.error, report.keys) == ("applied", "", ("nats",))


async def test_where_records_go_does_not_change_before_the_checkpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"data_dir": tmp_path, "sources": [{"type": "syslog", "udp": "127.0.0.1:0"}]}
    before = CollectorConfig.model_validate(document)
    after = CollectorConfig.model_validate({**document, "subject_prefix": "elsewhere"})
    agent = Agent(before, Path("collector.yaml"), load=lambda _: after, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    agent._recover()
    saver, checkpoint = agent._saver, agent._directory.checkpoint
    held, graph = saver.sorting, agent._engine.pipeline.graph

    async def fail() -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(saver, "save", fail)
        refused = await agent.reload()
    assert (refused.result, refused.generation) == ("refused", 1)
    assert "the checkpoint cannot be written" in refused.error
    assert (saver.sorting, agent._engine.pipeline.graph) == (held, graph)
    assert (await agent.reload()).result == "applied"
    document = checkpoint.load() or {}
    assert document["rules"] == ["", ""], "until the next checkpoint nothing is relied on"
    assert await saver.save()
    rules = rules_of(after, graph_of(after))
    assert (checkpoint.load() or {})["rules"] == [rules.spools, rules.files]
