"""Programs whose output is collected."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.sources.exec import ExecSettings, ExecSource
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async


@asynccontextmanager
async def running(
    directory: Path, program: str, **options: Any
) -> AsyncIterator[tuple[ExecSource, SpoolingIntake]]:
    command = [sys.executable, "-c", program]
    section = ExecSettings.model_validate(
        {"type": "exec", "command": command, "service": "job", **options}
    )
    async with spooling(directory, "exec", drop_newest=False) as spool_writer:
        source = ExecSource(
            section, spool_writer=spool_writer, restart_min_s=0.01, output_grace_s=0.05
        )
        await source.start()
        task = asyncio.ensure_future(source.run())
        try:
            yield source, spool_writer
        finally:
            await source.stop()
            await task


def bodies(spool_writer: SpoolingIntake) -> list[str]:
    return [json.loads(line)["body"] for line in spool_writer.lines()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


async def test_both_outputs_are_read_to_their_end(tmp_path: Path) -> None:
    program = "import sys; print('a'); print('b', end=''); print('e' * 100, file=sys.stderr)"
    async with running(tmp_path, program, interval_s=3600, max_line_bytes=64) as (_, spool_writer):
        await wait_until_async(lambda: len(bodies(spool_writer)) == 3)
        records = [json.loads(line) for line in spool_writer.lines()]
        streams = {r["body"]: r["attributes"]["log.iostream"] for r in records}
        assert streams == {"a": "stdout", "b": "stdout", "e" * 64: "stderr"}
        assert spool_writer.account.notes["lines_truncated"] == 1


async def test_a_program_that_ends_is_started_again(tmp_path: Path) -> None:
    async with running(tmp_path, "print('hi'); raise SystemExit(3)") as (_, spool_writer):
        await wait_until_async(lambda: len(bodies(spool_writer)) >= 2)
        await wait_until_async(lambda: spool_writer.account.notes["exits_with_failure"] >= 2)


async def test_the_stop_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(1000)"
    )
    async with running(tmp_path, program) as (source, spool_writer):
        await wait_until_async(lambda: bodies(spool_writer))
        pids = [int(pid) for pid in bodies(spool_writer)[0].split()]
        await source.stop()
        await wait_until_async(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("session", [False, True])
async def test_a_program_has_ended_though_another_holds_its_output(
    tmp_path: Path, session: bool
) -> None:
    program = (
        "import subprocess\n"
        f"child = subprocess.Popen(['sleep', '1000'], start_new_session={session})\n"
        "print(child.pid, end='', flush=True)"
    )
    async with running(tmp_path, program, interval_s=3600) as (_, spool_writer):
        await wait_until_async(lambda: bodies(spool_writer))
        pid = int(bodies(spool_writer)[0])
        try:
            await wait_until_async(lambda: spool_writer.account.notes["outputs_held_open"] == 1)
            await wait_until_async(lambda: is_alive(pid) == session)
        finally:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


async def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    program = "import time; print('begun', flush=True); time.sleep(1000)"
    async with running(tmp_path, program, interval_s=3600, timeout_s=0.5) as (_, spool_writer):
        await wait_until_async(lambda: spool_writer.account.notes["exits_with_failure"] == 1)
        assert spool_writer.account.notes["timeouts"] == 1


async def test_a_program_that_is_not_there_is_said_and_run_once_it_is(tmp_path: Path) -> None:
    program = tmp_path / "program"
    section = ExecSettings(type="exec", command=[str(program)], interval_s=0.1, service="job")
    async with spooling(tmp_path / "spool", "exec") as spool_writer:
        source = ExecSource(section, spool_writer=spool_writer)
        await source.start()
        run = asyncio.create_task(source.run())
        await wait_until_async(lambda: bool(source.trouble))
        assert source.trouble == f"command: {program} cannot be run"
        program.write_text("#!/bin/sh\necho here\n")
        program.chmod(0o755)
        await wait_until_async(lambda: "here" in bodies(spool_writer))
        assert source.trouble == ""
        await source.stop()
        await run
