"""What a checkpoint says of files, also while one source hands over to the next."""

from pathlib import Path

import pytest

from penstock.collector.agent import Agent
from penstock.collector.config import CollectorConfig
from penstock.collector.core.files import FileState, Generations
from penstock.collector.runner import Runner
from penstock.collector.saving import Saver
from penstock.collector.state import State, read_state
from penstock.logd.store import Checkpoint


def waiting(generation: int, *, inode: int = 7) -> FileState:
    return FileState("files", generation, 1, inode, "00", 4, "/x.log", position=4)


@pytest.mark.parametrize("lost", [True, False])
async def test_a_file_that_waits_during_a_hand_over_is_in_the_checkpoint_once(
    tmp_path: Path, *, lost: bool
) -> None:
    """The one that leaves and its successor both answer for it."""
    Checkpoint(tmp_path / "checkpoint").save(
        State(files=[waiting(1), waiting(2, inode=8)], next_generation=3).as_document()
    )
    source = {"type": "file", "name": "files", "include": [f"{tmp_path}/*.log"], "service": "app"}
    config = CollectorConfig.model_validate({"data_dir": tmp_path, "sources": [source]})
    agent = Agent(config, Path("collector.yaml"))
    agent._recover()
    engine, around = agent._engine, agent._sources.around
    if lost:
        for state in list(engine.generations.known.values()):
            engine.generations.lose(state)
    leaving = Runner(config.sources[0], around)
    coming = Runner(config.sources[0], around, predecessor=leaving)
    assert len(coming.file_sources) == 2
    saver = Saver(
        agent._directory,
        engine.spools,
        engine.delivery,
        engine.generations,
        engine.replayer,
        lambda: coming.file_sources,
    )
    assert await saver.save()
    await engine.close()
    document = Checkpoint(tmp_path / "checkpoint").load()
    assert document is not None
    assert [state.generation for state in read_state(document).files] == [1, 2]


def test_a_generation_that_stands_twice_in_a_checkpoint_is_one_file() -> None:
    """As versions wrote it that saved during a hand-over."""
    generations = Generations(
        following=3, known=[waiting(1), waiting(1), waiting(2), waiting(2), waiting(1)]
    )
    assert [state.generation for state in generations.known.values()] == [2]
    assert [state.generation for state in generations.lost] == [1]
    generations.remember([waiting(1), waiting(2)])
    assert [state.generation for state in generations.waiting] == [1, 2]
