"""A reload whose new configuration runs, and what can no longer refuse it."""

from pathlib import Path

import pytest
from nats.errors import ConnectionClosedError
from typing_extensions import override

from penstock.collector.agent import Agent
from penstock.collector.config import CollectorConfig
from penstock.collector.operating import Operating
from penstock.collector.publisher import Publisher
from penstock.collector.settings import digest_of_tables, graph_of, tables_of
from penstock.service import ConfigError, Health


async def test_what_runs_is_not_refused_because_a_file_for_people_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"type": "syslog", "name": "appliance", "udp": "127.0.0.1:0"}
    document = {"data_dir": tmp_path, "sources": [source]}
    before = CollectorConfig.model_validate(document)
    after = CollectorConfig.model_validate({**document, "resource": {"service.name": "other"}})
    agent = Agent(before, Path("collector.yaml"), load=lambda _: after, takes=lambda _: False)
    monkeypatch.setattr(agent, "_health", Health.READY)
    (tmp_path / "endpoints.new").mkdir()  # as on a full disk, no file can be written there
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
    report = await agent.reload()
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
    async def connect(self, name: str, timeout_s: float) -> None: ...

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
