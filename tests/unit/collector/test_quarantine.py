"""What a quarantine knows again after a restart."""

from pathlib import Path

from penstock.collector.agent import Agent
from penstock.collector.config import CollectorConfig
from penstock.collector.core.files import FileState
from penstock.collector.quarantine import Refusal
from penstock.collector.state import INDEX_BITS, State

CURSOR = 7


def refusal(origin: str, sequence: int, source: str = "stdin") -> Refusal:
    return Refusal(origin, source, sequence, "no such field", b"{}")


async def test_only_what_may_be_met_again_is_known_after_a_start(tmp_path: Path) -> None:
    first = CURSOR << INDEX_BITS
    again = [refusal("spool", first + 1), refusal("file/1", 100, "files")]
    unsure = [refusal("spool", 1, "not-configured"), refusal("file/9", 1, "files")]
    done = [refusal("spool", first - 1), refusal("file/1", 99, "files")]
    config = CollectorConfig.model_validate(
        {"data_dir": tmp_path, "sources": [{"type": "stdin", "service": "app"}]}
    )
    agent = Agent(config, Path("collector.yaml"))
    quarantine = agent._engine._quarantine
    for one in (*again, *unsure, *done):
        assert quarantine._offer(one) is not None
    await agent._directory.quarantine.commit()
    file = FileState("files", 1, 1, 2, "00", 4, "/x.log", position=100)
    state = State(agent._directory.state.incarnation, cursor=CURSOR, files=[file])
    quarantine.recover(agent._engine._begins(state))
    assert quarantine._known == {quarantine._identity(one) for one in (*again, *unsure)}
    before = agent._directory.quarantine.durable_offset
    assert await quarantine.put([*again, *unsure]) == 0
    assert agent._directory.quarantine.log.end_offset == before
    await agent._engine.close()
