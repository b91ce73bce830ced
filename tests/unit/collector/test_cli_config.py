"""`validate`, `test`, `graph`, `print-config`, `schema`, on the example and on what is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pydantic import BaseModel

from penstock.collector.cli.config import run_case
from penstock.collector.cli.main import cli
from penstock.collector.registry import TRANSFORMS
from penstock.collector.transforms.graph.settings import OutputSection
from penstock.collector.transforms.route import RouteBranch
from tests.support.collector_graph import HOST, config_of
from tests.support.geoip import SHOWN, city_database

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "collector" / "transforms.yaml"
PAGE = (ROOT / "docs" / "transforms.md").read_text()
PAGES = {
    name: (ROOT / "docs" / "collector" / "transforms" / f"{name}.md").read_text()
    for name in TRANSFORMS.types()
}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_the_example_is_valid_and_its_tests_pass() -> None:
    assert run("validate", EXAMPLE).output == "valid: 2 sources, 8 transforms, 2 tests\n"
    result = run("test", EXAMPLE)
    assert result.exit_code == 0, result.output
    assert result.output.endswith("2 of 2 tests passed\n")


def test_a_failed_test_shows_what_differs_and_exits_with_1(tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["tests"][0]["steps"][0]["expect"]["delivered"]["fields"]["severity_text"] = "INFO"
    document["tests"][0]["steps"][1]["expect"] = {"delivered": {}}
    document["tests"][0]["created"][0]["fields"]["value"] = 2
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(document))
    result = run("test", path)
    assert result.exit_code == 1
    for line in (
        "FAILED  access logs become attributes",
        '          record 1: severity_text: expected "INFO", found "ERROR"',
        "          record 2: delivered: expected a record on any subject, found none",
        '          record 2: ended: expected nothing, found ["filtered"]',
        "          created: value: expected 2, found 1",
        "ok      tenants have subjects of their own",
    ):
        assert line in result.output.splitlines()
    assert run("test", path, "--name", "tenants have subjects of their own").exit_code == 0
    assert run("test", path, "--name", "nobody").exit_code == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("99999999999999999999999", "Integer exceeds 64-bit range"),
        ("2026-01-01", "datetime.date"),
        ("{1: 2}", "Dict key must be str"),
        ("!!binary aGVsbG8=", "bytes"),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_a_test_with_what_json_cannot_hold_is_refused(
    tmp_path: Path, value: str, reason: str, *, given: bool
) -> None:
    """Of a date `expected "2026-01-01", found "2026-01-01"` was said, and others were a bug."""
    record, fields = (value, "x") if given else ("x", value)
    path = tmp_path / "c.yaml"
    path.write_text(
        "data_dir: /x\nsources: [{type: stdin, service: s}]\n"
        "tests:\n- name: t\n  source: stdin\n  steps:\n"
        f"  - record: {{body: {record}}}\n"
        f"    expect: {{delivered: {{fields: {{body: {fields}}}}}}}\n"
    )
    result = run("test", path)
    assert result.exit_code == 78, result.output
    key = "record" if given else "fields"
    assert re.search(rf"\.{key}.*: records are JSON, .*{reason}.*write it as a text", result.output)


def test_a_wrong_graph_exits_with_78_and_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    document = {"data_dir": "/x", "sources": [{"type": "stdin"}]}
    path.write_text(yaml.safe_dump({**document, "output": {"inputs": ["stdn"]}}))
    for command in (["validate"], ["graph"], ["--check", "--config"]):
        result = run(*command, path)
        assert result.exit_code == 78
        assert "output.inputs.0: there is no source or transform 'stdn'" in result.output


def written(directory: Path, **keys: Any) -> Path:
    path = directory / "c.yaml"
    document = {"data_dir": "/x", "sources": [{"type": "stdin"}], **keys}
    path.write_text(yaml.safe_dump(document))
    return path


def test_one_of_each_is_one(tmp_path: Path) -> None:
    transforms = {"fewer": {"type": "filter", "inputs": ["stdin"], "where": "true"}}
    path = written(tmp_path, transforms=transforms, output={"inputs": ["fewer"]})
    assert run("validate", path).output == "valid: 1 source, 1 transform, 0 tests\n"


CHECKS = pytest.mark.parametrize("command", [("validate",), ("--check", "--config")])


@CHECKS
@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (
            {"type": "otlp"},
            {"type": "forward", "listen": "127.0.0.1:4318"},
            "sources.1.listen: sources.0.http has 127.0.0.1:4318, too: give one of them another",
        ),
        (
            {"type": "syslog", "tcp": None},
            {"type": "statsd", "udp": "0.0.0.0:5140"},
            "sources.1.udp: sources.0.udp has 127.0.0.1:5140, too",
        ),
        (
            {"type": "syslog", "udp": None, "reuse_port": True},
            {"type": "otlp", "http": None, "grpc": "localhost:5140"},
            "sources.1.grpc: sources.0.tcp has 127.0.0.1:5140, too",
        ),
        (
            {"type": "unix", "path": "/run/a.sock"},
            {"type": "forward", "path": "/run/a.sock"},
            "sources.1.path: sources.0.path has /run/a.sock, too: give one of them another path",
        ),
    ],
)
def test_two_sources_do_not_listen_in_one_place(
    tmp_path: Path, command: tuple[str, ...], one: Any, other: Any, told: str
) -> None:
    path = written(tmp_path, sources=[one | {"name": "a"}, other | {"name": "b"}])
    refused = run(*command, path)
    assert refused.exit_code == 78
    assert f"error: {path}: {told}" in refused.stderr


@pytest.mark.parametrize(
    "sources",
    [
        [{"type": "syslog"}],
        [{"type": "syslog", "udp": None}, {"type": "statsd", "udp": "127.0.0.1:5140"}],
        [{"type": "otlp"}, {"type": "forward", "listen": "[::1]:4318"}],
        [{"type": "otlp"}, {"type": "forward", "listen": "127.0.0.2:4318"}],
        [{"type": "otlp", "http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}],
        [
            {"type": "http", "name": name, "listen": f"127.0.0.1:{port}", "path": "/"}
            for name, port in (("a", 8080), ("b", 8081))
        ],
        [
            {"type": "forward", "name": name, "listen": "127.0.0.1:24224", "reuse_port": True}
            for name in ("a", "b")
        ],
    ],
)
def test_sources_listen_beside_one_another(tmp_path: Path, sources: Any) -> None:
    assert run("validate", written(tmp_path, sources=sources)).exit_code == 0


@CHECKS
def test_files_of_tls_that_are_away_are_refused_with_their_keys(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    away = str(tmp_path / "none.pem")
    tls = {"cert_file": away, "key_file": away}
    keys = {
        "sources": [
            {"type": "otlp", "tls": tls},
            {"type": "prometheus", "targets": ["https://h/metrics"], "ca_file": away},
        ],
        "nats": {"url": "tls://h", "ca_file": away},
        "admin_access": {"token_file": "/x", **tls},
        "tracing": {"endpoint": "https://h", "ca_file": away},
    }
    path = written(tmp_path, **keys)
    refused = run(*command, path)
    assert refused.exit_code == 78
    places = [
        "sources.0.tls.cert_file", "sources.1.ca_file", "nats.ca_file", "admin_access.cert_file",
        "tracing.ca_file",
    ]  # fmt: skip
    for place in places:
        assert f"{path}: {place}: {away}: cannot be read: No such file" in refused.stderr
        assert f"{place}: name an existing, readable file" in refused.stderr


@CHECKS
def test_secrets_that_a_start_cannot_read_are_refused_with_their_keys(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    away, here, short = (tmp_path / name for name in ("none", "here", "short"))
    here.write_text("long-enough-for-a-token")
    short.write_text("short")

    def checked(file: Path) -> Result:
        secret = {"file": str(file)}
        forward = {"type": "forward", "listen": "127.0.0.1:0", "shared_key": secret}
        keys = {
            "sources": [{"type": "stdin", "service": "s"}, forward | {"users": {"ann": secret}}],
            "nats": {"url": "nats://h", "user": "u", "password": secret},
            "admin_access": {"token_file": str(file)},
        }
        return run(*command, written(tmp_path, **keys))

    assert checked(here).exit_code == 0
    refused = checked(away)
    assert refused.exit_code == 78
    for place in ("nats.password", "sources.1.shared_key", "sources.1.users.ann"):
        assert f": {place}: {away}: No such file or directory\n" in refused.stderr
        assert f"{place}: name a variable that is set, or a file" in refused.stderr
    assert f": admin_access: [Errno 2] No such file or directory: '{away}'" in refused.stderr
    refused = checked(short)
    assert (refused.exit_code, "one line of at least" in refused.stderr) == (78, True)


@CHECKS
def test_a_test_of_a_source_that_is_none_is_refused(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    steps: list[dict[str, Any]] = [{"record": {}, "expect": {"delivered": {}}}]
    tests = [{"name": "t", "source": source, "steps": steps} for source in ("stdin", "stdn")]
    path = written(tmp_path, tests=tests)
    refused = run(*command, path)
    assert refused.exit_code == 78
    assert f"error: {path}: tests.1.source: there is no source 'stdn', only stdin" in refused.stderr


def test_graph_shows_where_records_go_and_where_they_are_redacted() -> None:
    lines = run("graph", EXAMPLE).output.splitlines()
    assert "  [tenant] -> output" in lines
    assert lines[-2:] == ["redact (sensitive)", "  -> telemetry.{kind}.{service}"]
    dot = run("graph", EXAMPLE, "--format", "dot").output
    assert '  "tenants (route)" -> "output" [label="unmatched"];' in dot


def test_print_config_hides_secrets_and_merges(tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    url, key = tmp_path / "url", tmp_path / "key"
    url.write_text("nats://hunter2:4222\n")
    key.write_text("k1:hunter2-0123456789\n")
    path.write_text(
        f"nats: {{password: hunter2, url: {{file: {url}}}}}\n"
        f"sensitive: {{hash_key: {{file: {key}}}, except: {{fields: [{{file: {key}}}]}}}}\n"
    )
    output = run("print-config", EXAMPLE, path).output
    assert "hunter2" not in output
    assert yaml.safe_load(output)["nats"]["url"] == {"file": str(url)}
    assert yaml.safe_load(output)["sensitive"]["except"]["fields"] == [{"file": str(key)}]
    assert yaml.safe_load(output)["transforms"]["access"]["format"] == "clf"


def test_schema_is_json_schema() -> None:
    document = json.loads(run("schema").output)
    assert "ThrottleSettings" in document["$defs"]


MODELS: tuple[type[BaseModel], ...] = (
    *(kind.settings for kind in TRANSFORMS.kinds()),
    OutputSection,
    RouteBranch,
)


def type_of(model: type[BaseModel]) -> str:
    """The name of a transform; empty for other sections."""
    properties = model.model_json_schema()["properties"]
    return str(properties.get("type", {}).get("const", ""))


def test_every_option_of_every_transform_is_documented() -> None:
    missing = []
    for model in MODELS:
        name = type_of(model)
        page = PAGES[name] if name else PAGE + PAGES["route"]
        part = page.partition("<!-- options: generated -->")[0]
        missing += [
            f"{name}.{key}"
            for key in model.model_fields
            if key not in {"type", "inputs"} and f"`{key}`" not in part
        ]
    assert missing == []


EXAMPLES = [
    text
    for page in (PAGE, *PAGES.values())
    for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_page_do_what_it_says(text: str, tmp_path: Path) -> None:
    if SHOWN in text:
        text = text.replace(SHOWN, str(city_database(tmp_path)))
    given: Any = yaml.safe_load(text)
    config = config_of(given)
    assert config.tests, "an example without a test"
    assert {case.name: run_case(config, case, HOST) for case in config.tests} == {
        case.name: [] for case in config.tests
    }


def test_the_page_has_an_example_of_each_transform() -> None:
    used = {
        section["type"]
        for text in EXAMPLES
        for section in yaml.safe_load(text).get("transforms", {}).values()
    }
    assert used >= set(TRANSFORMS.types())


LINES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (
        {"type": "file", "include": ["/var/log/app.log"], "service": "app"},
        '{"level": "error", "msg": "broke", "code": 7}',
        {"severity_text": "ERROR", "body": "broke", "attributes.code": 7,
         "attributes.log.file.name": "app.log", "resource.service.name": "app"},
    ),
    (
        {"type": "file", "include": ["/a"], "service": "app", "format": "cri"},
        "2026-01-02T03:04:05Z stderr F hello",
        {"body": "hello", "attributes.log.iostream": "stderr",
         "time_unix_nano": 1_767_323_045_000_000_000},
    ),
    ({"type": "stdin", "service": "in"}, "plain", {"body": "plain", "severity_text": "INFO"}),
    (
        {"type": "stdin", "service": "in", "detect": ["severity", "time"]},
        "2026-01-02 03:04:05 ERROR oops",
        {"severity_text": "ERROR", "time_unix_nano": 1_767_323_045_000_000_000},
    ),
    (
        {"type": "syslog"},
        "<11>1 2026-01-02T03:04:05Z web-1 shop - - - oops",
        {"body": "oops", "severity_text": "ERROR", "resource.service.name": "shop"},
    ),
    (
        {"type": "socket", "tcp": "127.0.0.1:0", "codec": "logfmt"},
        "level=error msg=oops app=shop",
        {"body": "oops", "severity_text": "ERROR", "resource.service.name": "shop"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("source", "line", "fields"), LINES)
def test_a_test_may_have_a_line_as_its_source_reads_it(
    source: dict[str, Any], line: str, fields: dict[str, Any]
) -> None:
    expect = {"delivered": {"fields": fields}}
    case = {"name": "a line", "source": source["type"], "steps": [{"line": line, "expect": expect}]}
    config = config_of({"sources": [source], "tests": [case]})
    assert run_case(config, config.tests[0], HOST) == []


@pytest.mark.parametrize(
    ("on_error", "expect"),
    [("filter", {"ended": "filtered"}), ("quarantine", {"quarantined": "no time can be read"})],
)
def test_a_test_sees_that_a_source_lets_no_line_without_a_time_pass(
    on_error: str, expect: dict[str, Any]
) -> None:
    source = {"include": ["/a"], "service": "app", "timestamp": {"on_error": on_error}}
    for kind in ({"type": "file"}, {"type": "exec", "command": ["true"], "include": None}):
        section = {key: value for key, value in (source | kind).items() if value is not None}
        steps = [{"line": "no time", "expect": expect}]
        case = {"name": "a line", "source": section["type"], "steps": steps}
        config = config_of({"sources": [section], "tests": [case]})
        assert run_case(config, config.tests[0], HOST) == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"type": "file", "include": ["/a"], "service": "a", "format": "docker"},
         "no line of the format docker"),
        ({"type": "socket", "tcp": "127.0.0.1:0", "codec": "json"}, "is no JSON object"),
        ({"type": "statsd"}, "reads no lines"),
    ],
)  # fmt: skip
def test_a_line_that_its_source_does_not_read_is_said(source: dict[str, Any], why: str) -> None:
    step = {"line": "x", "expect": {"ended": "filtered"}}
    case = {"name": "a line", "source": source["type"], "steps": [step]}
    config = config_of({"sources": [source], "tests": [case]})
    (told,) = run_case(config, config.tests[0], HOST)
    assert why in told
