"""A worker whose supervisor is gone."""

import asyncio
import os

from penstock.collector.agent.workers import stop_when_orphaned


async def test_a_worker_whose_supervisor_ended_before_it_looked_stops() -> None:
    stop = asyncio.Event()
    await asyncio.wait_for(stop_when_orphaned(stop, os.getpid()), 20)  # it is not our parent
    assert stop.is_set()


async def test_a_worker_stops_when_its_supervisor_ends() -> None:
    stop, parents = asyncio.Event(), [7, 7, 1]
    stopped = stop_when_orphaned(stop, 7, parent=lambda: parents.pop(0), poll_s=0)
    await asyncio.wait_for(stopped, 20)
    assert (stop.is_set(), parents) == (True, [])
