"""What a quarantine knows again after a restart."""

import asyncio
from pathlib import Path
from uuid import UUID

from penstock.base.clock import SystemClock
from penstock.collector.agent.derived_config import graph_of, sizes_of
from penstock.collector.checkpoint.recovery import open_data_directory
from penstock.collector.checkpoint.state import INDEX_BITS, State
from penstock.collector.delivery.engine import Engine
from penstock.collector.sources.files.identity import FileState
from penstock.collector.spool.quarantine import Refusal
from penstock.collector.spool.spool import Unit
from tests.support.collector_agent import TestLog, config_of

CURSOR = 1


def refusal(origin: str, sequence: int, source: str = "app") -> Refusal:
    return Refusal(origin, source, sequence, "no such field", b"{}")


def engine_of(tmp_path: Path) -> Engine:
    config = config_of(tmp_path)
    directory = open_data_directory(config.data_dir, sizes_of(config), where="c.yaml")
    clock = SystemClock()
    publisher = TestLog().publisher(config.nats, UUID(int=1), lambda: None, clock, None)
    return Engine(directory, config, publisher, clock, graph_of(config))


async def put(engine: Engine, refusals: list[Refusal]) -> int:
    """How many of them are kept again."""
    journal = engine.directory.quarantine
    before = journal.log.end_offset
    putting = asyncio.ensure_future(engine.quarantine.put(refusals))
    await asyncio.sleep(0)  # they are offered
    await journal.commit()
    assert await putting == 0
    return journal.log.end_offset - before


async def test_only_what_may_be_met_again_is_known_after_a_start(tmp_path: Path) -> None:
    first = CURSOR << INDEX_BITS
    again = [refusal("spool", first + 1), refusal("file/1", 100, "files")]
    unsure = [refusal("spool", 1, "not-configured"), refusal("file/9", 1, "files")]
    done = [refusal("spool", first - 1), refusal("file/1", 99, "files")]
    engine = engine_of(tmp_path)
    assert await put(engine, [*again, *unsure, *done]) == 6
    assert await engine.spools.put(Unit("app", "lines", b"delivered", 1, 5)) is not None
    await engine.directory.spool.commit()
    file = FileState("files", 1, 1, 2, "00", 4, "/x.log", position=100)
    engine.recover(State(engine.directory.state.incarnation, cursor=CURSOR, files=[file]))
    assert await put(engine, [*again, *unsure]) == 0
    assert await put(engine, done) == 2, "what is not met again takes no memory"
    await engine.close()
    engine.directory.lock.release()
