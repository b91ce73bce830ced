"""The page's own JavaScript, by Node: what lasts for days, and names that JavaScript has, too.

`tests/live/test_console_page.py` has the page in a browser.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.deploy.console.web import PAGE

NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not here")

BROWSER = """
class Element {
  constructor() { this.childElementCount = 0; this.style = {}; this.value = ""; }
  append() {} prepend() {} setAttribute() {} addEventListener() {} replaceChildren() {}
}
let timers = new Map(), last = 0;
globalThis.document = { createElement: () => new Element(), addEventListener() {}, hidden: false };
globalThis.history = { replaceState() {} };
globalThis.location = { hash: "#/tail" };
globalThis.sessionStorage = { getItem: () => null };
globalThis.setTimeout = (run) => { timers.set(last += 1, run); return last; };
globalThis.clearTimeout = (timer) => timers.delete(timer);
const turn = () => new Promise((done) => setImmediate(done));
"""


def said(tmp_path: Path, script: str) -> object:
    """What a script that is beside the page's modules prints, as JSON."""
    assert NODE is not None
    shutil.copytree(PAGE, tmp_path / "page")
    (tmp_path / "page" / "package.json").write_text('{"type": "module"}')
    (tmp_path / "page" / "test.js").write_text(BROWSER + script)
    ran = subprocess.run(
        [NODE, "test.js"], cwd=tmp_path / "page", capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found: object = json.loads(ran.stdout)
    return found


def test_however_often_it_is_looked_at_one_question_follows_another(tmp_path: Path) -> None:
    """A user who turns to the page again and again does not make it ask more often."""
    script = """
    let answer = [];
    globalThis.fetch = () => new Promise((resolve) => answer.push(
      () => resolve({ ok: true, json: async () => ({}) })));
    const { begin, refresh } = await import("./store.js");
    begin();
    for (let n = 0; n < 5; n += 1) refresh();
    answer.forEach((give) => give());
    await turn();
    console.log(JSON.stringify([answer.length, timers.size]));
    """
    assert said(tmp_path, script) == [6, 1]


def test_a_view_that_fails_does_not_end_the_news(tmp_path: Path) -> None:
    script = """
    process.on("unhandledRejection", () => {});
    globalThis.fetch = async () => ({ ok: true, json: async () => ({}) });
    const { begin, listen } = await import("./store.js");
    listen(() => { throw new Error("a view"); });
    begin();
    await turn();
    console.log(JSON.stringify(timers.size));
    """
    assert said(tmp_path, script) == 1


@pytest.mark.parametrize("name", ["constructor", "toString", "__proto__"])
def test_a_stream_of_a_name_that_objects_have_is_one_as_any_other(
    tmp_path: Path, name: str
) -> None:
    rows = json.dumps([{"stream": name, "partition": 0}, {"stream": name, "partition": 1}])
    script = f"""
    const {{ view }} = await import("./tail.js");
    view.mount(new Element(), {{ parameters: new URLSearchParams() }});
    view.update({{ streams: {{ rows: {rows} }} }});
    console.log(JSON.stringify("shown"));
    """
    assert said(tmp_path, script) == "shown"


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("files", "dead letters"), ("batches", "penstock router replay --resume")],
)
def test_who_stops_a_replay_is_told_where_the_rest_of_it_waits(
    tmp_path: Path, unit: str, expected: str
) -> None:
    progress = json.dumps({"unit": unit, "done": "1", "of": "3", "records": "10"})
    script = f"""
    const told = [];
    let click;
    Element.prototype.append = (...parts) => {{
      told.push(...parts.filter((part) => typeof part === "string"));
    }};
    Element.prototype.addEventListener = (kind, run) => {{ click ??= run; }};
    Element.prototype.showModal = () => {{}};
    document.body = new Element();
    const {{ view }} = await import("./routers.js");
    view.mount(new Element());
    const replays = {{ under_way: "lake", progress: {progress}, stoppable: true, last: {{}} }};
    try {{
      view.update({{ routers: [{{ name: "router", health: "ok", sinks: [], replays }}] }});
    }} catch (error) {{
      if (!(error instanceof TypeError)) throw error;  // no document to show it in
    }}
    const button = {{ dataset: {{ router: "router", stops: "lake" }} }};
    told.length = 0;
    click({{ target: {{ closest: (sought) => sought.includes("stops") ? button : null }} }});
    console.log(JSON.stringify(told.find((text) => text.startsWith("Records that"))));
    """
    found = str(said(tmp_path, script))
    assert expected in found
    assert ("dead letters" in found) == (unit == "files")
