"""What children of `multiprocessing` say is sent, though they end without `atexit`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from opentelemetry import trace
from penstock import specs

def set_up():
    specs.setup("shop", console=False)

def work(number):
    specs.log().info("pooled", number=number)
    with trace.get_tracer("lib").start_as_current_span("pooled"):
        pass

def fail():
    specs.log().info("alone")
    sys.exit(3)

if __name__ == "__main__":
    method = sys.argv[1]
    set_up()
    initializer = None if method == "fork" else set_up
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context, initializer=initializer) as pool:
        list(pool.map(work, range(3)))
    if method == "fork":
        child = context.Process(target=fail)
        child.start()
        child.join()
        specs.log().info("ended", code=child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_lose_nothing_when_they_end(tmp_path: Path, method: str) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    quiet = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        (sys.executable, "app.py", method), cwd=tmp_path, env=quiet, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    bodies = [record["body"] for record in found if record["kind"] == "log"]
    assert bodies.count("pooled") == 3, done
    assert [record["name"] for record in found if record["kind"] == "span"] == ["pooled"] * 3
    if method == "fork":
        assert bodies[-2:] == ["alone", "ended"]
        assert found[-1]["attributes"]["code"] == 3


ALONE = """
import multiprocessing, multiprocessing.util, os, sys, time
from pathlib import Path
from penstock.specs import Emitter
from penstock.specs.emit.emitter import PROCESS_EXIT
from penstock.specs.emit.hooks import before_end

PROCESS_EXIT._left_s = 60  # as long may the end of a process wait for answers

def work():
    emitter.emit("log", b'{"body":"alone"}')
    emitter.emit("audit", b'{"kept":1}')
    began = []
    before_end(lambda: began.append(time.monotonic()))
    multiprocessing.util.Finalize(
        None, lambda: print(time.monotonic() - began[0], flush=True), exitpriority=-1000
    )

if __name__ == "__main__":
    emitter = Emitter({"service.name": "shop"}, socket_path="away.sock", spill_dir=Path("spill"))
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    os._exit(child.exitcode)
"""


def test_a_child_does_not_wait_for_a_collector_that_was_never_there(tmp_path: Path) -> None:
    """A pool with a new child for each task would take seconds for each."""
    (tmp_path / "spill").mkdir(mode=0o700)
    done = subprocess.run(
        (sys.executable, "-c", ALONE), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert 0 <= float(done.stdout) < 20
    journals = [path.read_bytes() for path in (tmp_path / "spill").iterdir()]
    assert any(b'{"kept":1}' in journal for journal in journals)
