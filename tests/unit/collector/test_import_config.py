# ruff: noqa: E501 - configurations are as their users write them
"""Configurations as other agents' users write them, rewritten as the collector's."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.collector.agent.derived_config import graph_of
from penstock.collector.cli.main import cli
from penstock.collector.config import CollectorConfig
from penstock.collector.importing.conditions import from_ottl, from_vrl
from penstock.collector.importing.draft import Draft, seconds, size_bytes
from penstock.collector.importing.reading import UnknownConfigurationError, import_text
from tests.support.geoip import SHOWN, city_database


def imported(text: str, suffix: str = ".yaml") -> tuple[Draft, dict[str, Any]]:
    """The draft, and its text read again, which is a configuration that makes a graph."""
    draft = import_text(text, suffix=suffix)
    made: dict[str, Any] = yaml.safe_load(draft.text())
    assert made == yaml.safe_load(yaml.safe_dump(draft.document()))
    if SHOWN not in text:
        graph_of(CollectorConfig.model_validate(made))
    return draft, made


def source_of(made: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in made["sources"] if one["name"] == name]
    return {key: value for key, value in found.items() if key != "name"}


def comments_of(draft: Draft) -> list[str]:
    return re.findall(r"# not taken over: (.*)", draft.text())


VECTOR = r"""
data_dir: /var/lib/vector
sources:
  app:
    type: file
    include: [/var/log/app/*.log]
    exclude: [/var/log/app/*.gz]
    read_from: end
    ignore_older_secs: 86400
    multiline: {start_pattern: '^\d{4}', condition_pattern: '^\d{4}', mode: halt_before, timeout_ms: 1000}
    internal_metrics: {include_file_tag: true}
  net: {type: socket, mode: tcp, address: 0.0.0.0:5000, decoding: {codec: json}, framing: {method: octet_counting}}
  sys: {type: syslog, mode: udp, address: 0.0.0.0:514}
  otel: {type: opentelemetry, grpc: {address: 0.0.0.0:4317}, http: {address: 0.0.0.0:4318}}
  kafka_in: {type: kafka, bootstrap_servers: k:9092, topics: [a], group_id: g}
transforms:
  parsed:
    type: remap
    inputs: [app]
    source: |
      . = parse_json!(string!(.message))
      .env = "prod"
      .user.id = del(.uid)
      del(.debug)
      .took = to_int!(.ms) * 1000
  errors: {type: filter, inputs: [parsed], condition: '.level == "ERROR" && !contains(.message, "health")'}
  split:
    type: route
    inputs: [net]
    route: {slow: '.took > 500', broken: 'to_syslog_severity(.x) == 3'}
  tenth: {type: sample, inputs: [split.slow], rate: 10}
  calm: {type: throttle, inputs: [sys], threshold: 100, window_secs: 10, key_field: "{{ host }}"}
  once: {type: dedupe, inputs: [calm], fields: {match: [message, host]}, cache: {num_events: 5000}}
  joined:
    type: reduce
    inputs: [once]
    group_by: [request_id]
    expire_after_ms: 2000
    merge_strategies: {message: concat_newline, bytes: sum, tags: flat_unique}
    ends_when: '.done == true'
  scripted: {type: lua, version: "2", inputs: [kafka_in]}
  numbered: {type: lua, version: "2", inputs: [joined]}
  metrics:
    type: log_to_metric
    inputs: [numbered]
    metrics: [{type: counter, field: status, name: responses, tags: {status: "{{ status }}", site: a}}]
sinks:
  out: {type: loki, inputs: [errors], endpoint: http://loki:3100}
"""


def test_vector() -> None:
    draft, made = imported(VECTOR)
    assert source_of(made, "app") == {
        "type": "file", "include": ["/var/log/app/*.log"], "service": "app",
        "exclude": ["/var/log/app/*.gz"], "start_at": "end", "ignore_older_s": 86400,
        "join_timeout_s": 1.0, "multiline": {"start": r"^\d{4}"},
    }  # fmt: skip
    assert source_of(made, "net") == {
        "type": "socket", "tcp": "0.0.0.0:5000", "codec": "json", "framing": "octet_counted"
    }  # fmt: skip
    assert source_of(made, "sys") == {"type": "syslog", "udp": "0.0.0.0:514", "tcp": None}
    transforms = made["transforms"]
    assert transforms["parsed"] == {"type": "parse", "inputs": ["app"], "format": "json"}
    assert transforms["parsed_2"]["set"] == {"attributes.env": '"prod"'}
    assert transforms["parsed_3"]["rename"] == {"attributes.uid": "attributes.user.id"}
    assert transforms["parsed_3"]["remove"] == ["attributes.debug"]
    assert transforms["errors"]["inputs"] == ["parsed_3"]
    assert transforms["errors"]["where"] == ('severity_text == "ERROR" && !body.contains("health")')
    assert transforms["tenth"]["inputs"] == ["split.slow"]
    assert transforms["tenth"]["ratio"] == 0.1
    assert transforms["calm"]["rate"] == 10
    assert transforms["calm"]["key"] == "resource.host.name"
    assert transforms["joined"]["merge"] == {"body": "concat", "attributes.bytes": "sum"}
    assert transforms["joined"]["ends_when"] == "attributes.done == true"
    assert transforms["metrics"]["inputs"] == ["joined"]
    assert transforms["metrics"]["dimensions"] == {"status": "attributes.status", "site": '"a"'}
    comments = " | ".join(comments_of(draft))
    for part in (
        "sources.kafka_in (kafka)", "sinks.out (loki)", "sources.app.internal_metrics",
        "transforms.parsed.source: .took = to_int!(.ms) * 1000", "transforms.scripted (lua)",
        "transforms.numbered (lua)", "transforms.split.route.broken", "flat_unique",
    ):  # fmt: skip
        assert part in comments


def test_the_outputs_of_a_source_of_vector_are_its_signals() -> None:
    draft, made = imported(
        """
        sources: {otel: {type: opentelemetry, grpc: {address: "0.0.0.0:4317"}}}
        transforms:
          quiet: {type: filter, inputs: [otel.logs], condition: '.level != "debug"'}
          all: {type: filter, inputs: [otel.traces, otel.metrics], condition: 'exists(.name)'}
        """
    )
    transforms = made["transforms"]
    assert transforms["otel_signals"]["inputs"] == ["otel"]
    assert transforms["quiet"]["inputs"] == ["otel_signals.logs"]
    assert transforms["all"]["inputs"] == ["otel_signals.traces", "otel_signals.metrics"]
    assert not [one for one in comments_of(draft) if "otel" in one]


def test_a_secret_of_vector_is_named_and_not_shown() -> None:
    draft, made = imported(
        """
sources:
  hec: {type: splunk_hec, address: "0.0.0.0:8088", valid_tokens: [hunter2]}
  web: {type: http_server, address: "0.0.0.0:80", auth: {username: a, password: hunter2}}
sinks:
  out: {type: console, inputs: [hec, web], encoding: {codec: json}}
"""
    )
    assert source_of(made, "hec") == {"type": "splunk_hec", "listen": "0.0.0.0:8088"}
    assert "hunter2" not in draft.text()
    comments = comments_of(draft)
    assert any("sources.hec.valid_tokens: write the secret to a file" in it for it in comments)
    assert any("sources.web.auth: write the secret to a file" in it for it in comments)


def test_vector_in_toml() -> None:
    text = """
    [sources.in]
    type = "http_server"
    address = "0.0.0.0:8080"
    [transforms.web]
    type = "remap"
    inputs = ["in"]
    source = '''
    . |= parse_grok!(.message, "%{COMMONAPACHELOG}")
    . = parse_regex!(.message, r'^(?<code>\\d+)')
    '''
    [sinks.out]
    type = "console"
    inputs = ["web"]
    """
    draft, made = imported(text, ".toml")
    assert made["transforms"]["web"]["patterns"] == ["%{COMMONAPACHELOG}"]
    assert made["transforms"]["web_2"]["pattern"] == r"^(?P<code>\d+)"
    assert comments_of(draft) == [
        "sinks.out (console): sinks are the router's; see docs/router/sinks.md"
    ]


CLASSIC = r"""
[SERVICE]
    Flush        1
    Parsers_File parsers.conf
@INCLUDE more.conf
[PARSER]
    Name   app
    Format regex
    Regex  ^(?<time>[^ ]+) (?<level>[A-Z]+) (?<took>\d+)$
    Time_Key time
    Time_Format %Y-%m-%dT%T.%L
    Types took:integer
[INPUT]
    Name   tail
    Tag    app.web
    Path   /var/log/web/*.log,/var/log/api/*.log
    Parser app
    Ignore_Older 1d
    Buffer_Max_Size 64k
    Inotify_Watcher false
[INPUT]
    Name tail
    Tag  kube.*
    Path /var/log/containers/*.log
    multiline.parser cri, java
    Read_from_Head On
[INPUT]
    Name systemd
    Tag  host
    Systemd_Filter _SYSTEMD_UNIT=docker.service
    Systemd_Filter _SYSTEMD_UNIT=ssh.service
[INPUT]
    Name   tcp
    Listen 0.0.0.0
    Port   5170
    Tag    tcp
[INPUT]
    Name mqtt
[FILTER]
    Name kubernetes
    Match kube.*
[FILTER]
    Name grep
    Match app.*
    Regex level ^(ERROR|WARN)$
    Exclude log health
[FILTER]
    Name modify
    Match *
    Set  env prod
    Add  site a
    Rename lvl level
    Remove debug
[FILTER]
    Name lua
    Match app.*
    script x.lua
[FILTER]
    Name grep
    Match none.*
    Regex a b
[OUTPUT]
    Name es
    Match *
"""


def test_fluent_bit_classic() -> None:
    draft, made = imported(CLASSIC, ".conf")
    assert source_of(made, "app_web") == {
        "type": "file", "include": ["/var/log/web/*.log", "/var/log/api/*.log"],
        "service": "app.web", "start_at": "end", "ignore_older_s": 86400.0,
        "max_line_bytes": 65536,
    }  # fmt: skip
    assert source_of(made, "kube") == {
        "type": "file", "include": ["/var/log/containers/*.log"], "service": "from_container",
        "format": "cri", "multiline": {"extends": "java"}, "kubernetes": {},
    }  # fmt: skip
    assert source_of(made, "host")["units"] == ["docker.service", "ssh.service"]
    assert source_of(made, "tcp") == {"type": "socket", "tcp": "0.0.0.0:5170", "codec": "json"}
    transforms = made["transforms"]
    assert transforms["app_web_parse"]["pattern"].startswith("^(?P<time>")
    assert transforms["app_web_parse"]["types"] == {"took": "int"}
    assert transforms["app_web_parse_parse"]["layouts"] == ["%Y-%m-%dT%H:%M:%S.%f"]
    assert transforms["grep"]["inputs"] == ["app_web_parse_parse"]
    assert transforms["grep"]["where"] == (
        'string(severity_text).matches("(?i)^(ERROR|WARN)$") && !string(body).matches("health")'
    )
    assert transforms["modify"]["inputs"] == ["grep", "kube", "host", "tcp"]
    assert transforms["modify"]["set"] == {
        "attributes.env": '"prod"', "attributes.site": 'coalesce(attributes.site, "a")'
    }  # fmt: skip
    comments = " | ".join(comments_of(draft))
    for part in (
        "@INCLUDE more.conf", "mqtt: there is no such source", "inotify_watcher", "lua", "es:",
        "Match none.* fits no input",
    ):  # fmt: skip
        assert part in comments


FILTERED_APART = """
[INPUT]
    Name forward
    Tag fluent
[INPUT]
    Name tail
    Path /var/log/app.log
    Tag app.log
[INPUT]
    Name http
    Tag app.posted
[FILTER]
    Name modify
    Match *
    Set env prod
[FILTER]
    Name grep
    Match_Regex ^app\\.
    Exclude level debug
"""


def test_a_filter_of_fluent_bit_takes_no_records_of_inputs_that_it_does_not_match() -> None:
    _, made = imported(FILTERED_APART, ".conf")
    inputs = {name: one["inputs"] for name, one in made["transforms"].items()}
    assert inputs == {
        "modify": ["fluent"], "modify_2": ["app_log", "app_posted"], "grep": ["modify_2"],
    }  # fmt: skip


OTLP_OF_SIGNALS = """
receivers: {otlp: {protocols: {grpc: {}}}, zipkin: {}}
processors:
  attributes: {actions: [{key: env, value: prod, action: upsert}]}
  batch: {}
service:
  pipelines:
    logs: {receivers: [otlp], processors: [attributes, batch]}
    traces: {receivers: [otlp, zipkin], processors: [attributes]}
    metrics: {receivers: [otlp], processors: [%s]}
"""


def test_a_receiver_of_several_signals_gives_each_pipeline_its_own() -> None:
    _, made = imported(OTLP_OF_SIGNALS % "batch")
    transforms = made["transforms"]
    assert transforms["otlp_signals"] == {
        "type": "route", "inputs": ["otlp"],
        "routes": {
            "logs": {"where": 'kind == "log"'}, "traces": {"where": 'kind == "span"'},
            "metrics": {"where": 'kind == "metric"'},
        },
    }  # fmt: skip
    assert transforms["logs_attributes"]["inputs"] == ["otlp_signals.logs"]
    assert transforms["traces_attributes"]["inputs"] == ["otlp_signals.traces", "zipkin"]


def test_a_receiver_whose_pipelines_change_nothing_is_not_parted() -> None:
    text = OTLP_OF_SIGNALS.replace("[attributes, batch]", "[]").replace("[attributes]", "[]")
    _, made = imported(text % "batch")
    assert "transforms" not in made


FLUENT_YAML = f"""
service: {{flush: 1}}
pipeline:
  inputs:
    - {{name: forward, port: 24224, tag: f}}
    - {{name: opentelemetry, port: 4318}}
    - {{name: node_exporter_metrics, scrape_interval: 30s}}
  filters:
    - {{name: parser, match: f, key_name: log, parser: nginx}}
    - {{name: geoip2, match: f, database: {SHOWN}, lookup_key: ip, record: "country ip %{{country}}"}}
    - {{name: throttle, match: '*', rate: 60, interval: 1m}}
  outputs:
    - {{name: stdout, match: '*'}}
"""


def test_fluent_bit_yaml(tmp_path: Path) -> None:
    draft, made = imported(FLUENT_YAML)
    made = yaml.safe_load(draft.text().replace(SHOWN, str(city_database(tmp_path))))
    graph_of(CollectorConfig.model_validate(made))
    assert source_of(made, "opentelemetry") == {
        "type": "otlp", "http": "0.0.0.0:4318", "grpc": None
    }  # fmt: skip
    assert made["transforms"]["parser"]["format"] == "clf"
    assert made["transforms"]["geoip2"]["field"] == "attributes.ip"
    assert made["transforms"]["throttle"]["rate"] == 1.0


OTEL = r"""
receivers:
  otlp: {protocols: {grpc: {endpoint: "0.0.0.0:4317"}, http: {}}}
  filelog/app:
    include: [/var/log/app.log]
    start_at: beginning
    multiline: {line_start_pattern: '^\d'}
    operators:
      - {type: json_parser, timestamp: {parse_from: attributes.ts, layout: '%s'}, severity: {parse_from: attributes.lvl}}
      - {type: move, from: attributes.msg, to: body}
      - {type: add, field: attributes.env, value: prod}
      - {type: router, routes: []}
  hostmetrics: {collection_interval: 30s, scrapers: {cpu: {}}}
  prometheus: {config: {scrape_configs: [{job_name: a, scrape_interval: 15s, static_configs: [{targets: ["a:9100", "b:9100"]}]}]}}
  kafka: {}
  jaeger: {}
processors:
  batch: {}
  memory_limiter: {check_interval: 1s}
  resource: {attributes: [{key: cluster, value: eu, action: upsert}, {key: host.id, action: delete}]}
  attributes/tidy: {actions: [{key: user, action: hash}, {key: env, value: prod, action: insert}]}
  filter/noise:
    error_mode: ignore
    logs: {log_record: ['IsMatch(body, "health.*")', 'severity_number < SEVERITY_NUMBER_WARN and attributes["a"] == nil']}
  transform: {log_statements: [{context: log, statements: ['set(attributes["b"], "x") where body != nil', 'delete_key(attributes, "c")', 'merge_maps(attributes, cache, "upsert")']}]}
  probabilistic_sampler: {sampling_percentage: 15}
  tail_sampling:
    decision_wait: 5s
    num_traces: 1000
    policies:
      - {name: errors, type: status_code, status_code: {status_codes: [ERROR]}}
      - {name: slow, type: latency, latency: {threshold_ms: 500}}
      - {name: rest, type: probabilistic, probabilistic: {sampling_percentage: 5}}
      - {name: both, type: and, and: {}}
  k8sattributes: {}
  groupbyattrs: {}
exporters: {otlphttp: {endpoint: http://x}}
extensions: {health_check: {}}
service:
  extensions: [health_check]
  pipelines:
    logs: {receivers: [filelog/app, otlp], processors: [memory_limiter, resource, attributes/tidy, filter/noise, transform, groupbyattrs, batch], exporters: [otlphttp]}
    traces: {receivers: [otlp], processors: [tail_sampling], exporters: [otlphttp]}
    metrics: {receivers: [hostmetrics, prometheus, kafka], processors: [probabilistic_sampler], exporters: [otlphttp]}
"""


def test_the_opentelemetry_collector() -> None:
    draft, made = imported(OTEL)
    assert source_of(made, "otlp") == {
        "type": "otlp", "grpc": "0.0.0.0:4317", "http": "0.0.0.0:4318"
    }  # fmt: skip
    assert source_of(made, "filelog_app")["multiline"] == {"start": r"^\d"}
    assert source_of(made, "prometheus")["targets"] == [
        "http://a:9100/metrics", "http://b:9100/metrics"
    ]  # fmt: skip
    transforms = made["transforms"]
    assert transforms["filelog_app_json_parser"]["lift"] == {"time": "ts", "severity": "lvl"}
    assert transforms["filelog_app_move"]["rename"] == {"attributes.msg": "body"}
    assert transforms["logs_resource"]["inputs"] == ["filelog_app_add", "otlp_signals.logs"]
    assert transforms["logs_resource"]["set"] == {"resource.cluster": '"eu"'}
    assert transforms["logs_resource"]["remove"] == ["resource.host.id"]
    assert transforms["logs_filter_noise"]["where"] == (
        '!(body.matches("health.*")) && !(severity_number < 13 && attributes.a == null)'
    )
    assert transforms["logs_transform"]["set"] == {
        "attributes.b": 'body != null ? "x" : attributes.b'
    }  # fmt: skip
    assert transforms["logs_transform_2"]["remove"] == ["attributes.c"]
    assert transforms["traces_tail_sampling"] == {
        "type": "tail_sample", "inputs": ["otlp_signals.traces"], "wait_s": 5.0, "max_traces": 1000,
        "ratio": 0.05, "rules": [{"where": 'status_code == "ERROR"'}, {"min_duration_ms": 500}],
    }  # fmt: skip
    assert transforms["metrics_probabilistic_sampler"]["ratio"] == 0.15
    comments = " | ".join(comments_of(draft))
    for part in (
        "receivers.kafka", "receivers.jaeger: no pipeline", "operators.3", "action: hash",
        "merge_maps", "type: and", "groupbyattrs", "exporters.otlphttp", "extensions.health_check",
    ):  # fmt: skip
        assert part in comments
    assert "batch" not in comments


PROMTAIL = r"""
server: {http_listen_port: 9080}
positions: {filename: /tmp/positions.yaml}
clients: [{url: "http://loki:3100/loki/api/v1/push"}]
scrape_configs:
  - job_name: system
    static_configs:
      - {targets: [localhost], labels: {job: varlogs, __path__: /var/log/*.log, env: prod}}
    pipeline_stages:
      - multiline: {firstline: '^\d{4}', max_wait_time: 3s}
      - regex: {expression: '^(?P<ts>\S+) (?P<level>\w+) (?P<msg>.*)$'}
      - timestamp: {source: ts, format: "2006-01-02T15:04:05"}
      - labels: {level: }
      - output: {source: msg}
      - drop: {source: level, value: DEBUG}
      - drop: {older_than: 24h}
      - limit: {rate: 10, burst: 20, drop: true}
      - match: {selector: '{job="x"}', stages: []}
  - job_name: journal
    journal: {max_age: 12h, labels: {job: systemd-journal}}
    relabel_configs: [{source_labels: [__journal__systemd_unit], target_label: unit}]
  - job_name: pods
    kubernetes_sd_configs: [{role: pod}]
    pipeline_stages: [{cri: {}}, {static_labels: {site: a}}, {labeldrop: [stream]}]
  - job_name: gelf
    gelf: {listen_address: "0.0.0.0:12201", use_incoming_timestamp: true}
"""


def test_promtail() -> None:
    draft, made = imported(PROMTAIL)
    assert source_of(made, "system") == {
        "type": "file", "include": ["/var/log/*.log"], "service": "varlogs",
        "multiline": {"start": r"^\d{4}"}, "join_timeout_s": 3.0,
    }  # fmt: skip
    assert source_of(made, "gelf") == {"type": "socket", "udp": "0.0.0.0:12201", "codec": "gelf"}
    assert source_of(made, "pods")["kubernetes"] == {}
    transforms = made["transforms"]
    assert transforms["system_labels"]["set"] == {"attributes.env": '"prod"'}
    assert transforms["system_timestamp"]["layouts"] == ["%Y-%m-%dT%H:%M:%S"]
    assert transforms["system_output"]["set"] == {"body": "coalesce(attributes.msg, body)"}
    assert transforms["system_drop"]["where"] == 'severity_text != "DEBUG"'
    assert transforms["system_limit"]["rate"] == 10.0
    assert transforms["pods_labeldrop"]["inputs"] == ["pods_static_labels"]
    comments = " | ".join(comments_of(draft))
    for part in ("clients.0", "drop: no counterpart", "match", "relabel_configs.0"):
        assert part in comments


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('.level == "error"', 'severity_text == "ERROR"'),
        ('.level != "warning"', 'severity_text != "WARN"'),
        ('contains(.level, "err")', 'severity_text.contains("ERR")'),
        ("match(.level, r'^(warning|[Ee]rr)')", 'severity_text.matches("(?i)^(WARN|[Ee]rr)")'),
        ('.level == "audit" || .app.level == "error"',
         'severity_text == "audit" || attributes.app.level == "error"'),
        (".a.b != 5 || exists(.c)", "attributes.a.b != 5 || has(attributes.c)"),
        ('starts_with(string!(.message), ".x")', 'body.startsWith(".x")'),
        ("match(.message, r'^\\d+$')", 'body.matches("^\\\\d+$")'),
        ("is_json(.message)", None), ("!!", None), (".a = 5", None), ("", None),
    ],
)  # fmt: skip
def test_conditions_of_vector(condition: str, expected: str | None) -> None:
    assert from_vrl(condition) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('attributes["http.status"] >= 500', "attributes.http.status >= 500"),
        ('resource.attributes["host name"] == "and"', 'resource["host name"] == "and"'),
        ("log.severity_number >= SEVERITY_NUMBER_ERROR2", "severity_number >= 18"),
        ("span.status.code == STATUS_CODE_ERROR", 'status_code == "ERROR"'),
        ("Len(body) > 5", None), ("", None),
    ],
)  # fmt: skip
def test_conditions_of_the_opentelemetry_collector(condition: str, expected: str | None) -> None:
    assert from_ottl(condition) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("10", 10), (5, 5), ("500ms", 0.5), ("1m30s", 90), ("1d", 86400), ("soon", None), (True, None),
     (None, None)],
)  # fmt: skip
def test_durations(value: Any, expected: float | None) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [("32k", 32768), ("1MiB", 1 << 20), (7, 7), ("x", None), (None, None)]
)
def test_sizes(value: Any, expected: int | None) -> None:
    assert size_bytes(value) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1", "looks like no configuration"), ("[1, 2]", "is no mapping"), ("{", "cannot be read"),
        ("receivers: 5\nservice: 6", "is no configuration of otel"),
        ("sources: [1]\nsinks: {}", "is no configuration of vector"),
        ("scrape_configs: 7", "is no configuration of promtail"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(text: str, why: str) -> None:
    with pytest.raises(UnknownConfigurationError, match=why):
        import_text(text)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "promtail.yaml"
    path.write_text(PROMTAIL)
    result = CliRunner().invoke(cli, ["import-config", str(path)])
    assert result.exit_code == 0
    assert result.output.startswith("# Made from a configuration of Promtail")
    made = tmp_path / "collector.yaml"
    made.write_text(result.output)
    assert CliRunner().invoke(cli, ["validate", str(made)]).exit_code == 0
    path.write_text("a: 1")
    result = CliRunner().invoke(cli, ["import-config", str(path)])
    assert result.exit_code == 78
    assert "name the agent with --from" in result.output


# Containers, the cluster's events, and targets that are found.

CLUSTER_OTEL = r"""
receivers:
  k8s_events: {auth_type: serviceAccount, namespaces: [shop]}
  k8sobjects:
    objects:
      - {name: events, mode: watch, namespaces: [till], field_selector: type=Warning}
      - {name: pods, mode: pull}
  prometheus:
    config:
      global: {scrape_interval: 30s}
      scrape_configs:
        - job_name: pods
          kubernetes_sd_configs: [{role: pod, namespaces: {names: [shop]}, selectors: [{role: pod, label: app=a}, {role: pod, field: spec.nodeName=n}]}]
          relabel_configs:
            - {source_labels: [__meta_kubernetes_pod_annotation_prometheus_io_scrape], action: keep, regex: "true"}
            - {source_labels: [__address__, __meta_port], regex: "(.+?)(?::\\d+)?;(\\d+)", replacement: "$$1:$$2", target_label: __address__}
        - job_name: found
          scrape_interval: 10s
          file_sd_configs: [{files: [/etc/targets/*.json]}]
          dns_sd_configs: [{names: [_metrics._tcp.shop.svc]}, {names: [web], type: A, port: 9100}, {names: [m], type: MX}]
          kubernetes_sd_configs: [{role: endpoints}]
          consul_sd_configs: [{server: "c:8500"}]
          metric_relabel_configs: [{source_labels: [__name__], regex: go_.*, action: drop}]
extensions:
  docker_observer: {}
service:
  extensions: [docker_observer]
  pipelines:
    logs: {receivers: [k8s_events, k8sobjects]}
    metrics: {receivers: [prometheus]}
"""


def test_the_otel_collectors_cluster_receivers_and_scrape_jobs() -> None:
    draft, made = imported(CLUSTER_OTEL)
    assert source_of(made, "k8s_events") == {"type": "kubernetes_events", "namespaces": ["shop"]}
    assert source_of(made, "k8sobjects") == {"type": "kubernetes_events", "namespaces": ["till"]}
    pods = source_of(made, "prometheus_pods")
    assert (pods["service"], pods["interval_s"]) == ("pods", 30)
    assert pods["kubernetes"] == [
        {"role": "pod", "namespaces": ["shop"], "label_selector": "app=a"}
    ]
    assert pods["relabel"][1]["replacement"] == "$1:$2", "$$ is one dollar there"
    found = source_of(made, "prometheus_found")
    assert found["interval_s"] == 10
    assert found["files"] == ["/etc/targets/*.json"]
    assert found["dns"] == [
        {"names": ["_metrics._tcp.shop.svc"], "type": "SRV"},
        {"names": ["web"], "type": "A", "port": 9100},
    ]
    assert found["metric_relabel"][0]["action"] == "drop"
    comments = "\n".join(comments_of(draft))
    for reason in (
        "objects.0.field_selector: no counterpart", "objects.1: only events are taken",
        "selectors: field: no counterpart: spec.nodeName=n", "role endpoints: no counterpart",
        "dns_sd_configs.2: no counterpart", "consul_sd_configs: no counterpart",
        "docker_observer: a source `file`",
    ):  # fmt: skip
        assert reason in comments


def test_fluent_bits_kubernetes_events() -> None:
    text = """
[INPUT]
    Name kubernetes_events
    Tag  events
    Kube_URL https://10.0.0.1:6443/
    Kube_Token_File /run/token
    Kube_Namespace shop
    Tls.Verify Off
    DB /var/lib/events.db
    Kube_CA_Path /run/certs
"""
    draft, made = imported(text, ".conf")
    assert source_of(made, "events") == {
        "type": "kubernetes_events", "server": "https://10.0.0.1:6443", "verify": False,
        "token_file": "/run/token", "namespaces": ["shop"],
    }  # fmt: skip
    (comment,) = comments_of(draft)
    assert "kube_ca_path: no counterpart" in comment


CONTAINER_FILES = {
    "type": "file", "include": ["/var/lib/docker/containers/*/*-json.log"], "format": "docker",
    "service": "from_container",
}  # fmt: skip


def test_vectors_containers() -> None:
    text = r"""
sources:
  here: {type: docker_logs, docker_host: "unix:///run/user/1/docker.sock", include_containers: [a], multiline: {start_pattern: '^\S', condition_pattern: '^\S', mode: halt_before, timeout_ms: 1000}}
  there: {type: docker_logs, docker_host: "http://10.0.0.2:2375"}
  pods: {type: kubernetes_logs, read_from: end, ignore_older_secs: 600, extra_label_selector: app=a}
sinks: {}
"""
    draft, made = imported(text)
    assert source_of(made, "here") == CONTAINER_FILES | {
        "docker": {"socket": "/run/user/1/docker.sock"}, "multiline": {"start": r"^\S"},
        "join_timeout_s": 1.0,
    }  # fmt: skip
    assert source_of(made, "there") == CONTAINER_FILES | {"docker": {}}
    pods = source_of(made, "pods")
    assert (pods["start_at"], pods["ignore_older_s"], pods["kubernetes"]) == ("end", 600, {})
    comments = "\n".join(comments_of(draft))
    for key in "here.include_containers", "there.docker_host", "pods.extra_label_selector":
        assert f"sources.{key}: no counterpart" in comments


def test_promtails_discovered_containers() -> None:
    text = """
scrape_configs:
  - job_name: pods
    kubernetes_sd_configs:
      - {role: pod, namespaces: {names: [shop, till]}}
      - {role: node}
  - job_name: engine
    docker_sd_configs:
      - {host: "unix:///var/run/docker.sock", refresh_interval: 5s, filters: [{name: label, values: [a]}]}
"""
    draft, made = imported(text)
    assert source_of(made, "pods")["include"] == [
        "/var/log/pods/shop_*/*/*.log", "/var/log/pods/till_*/*/*.log"
    ]  # fmt: skip
    assert source_of(made, "engine") == CONTAINER_FILES | {
        "docker": {"socket": "/var/run/docker.sock"}
    }
    comments = "\n".join(comments_of(draft))
    assert "kubernetes_sd_configs.1: role node: files are of pods alone" in comments
    assert "docker_sd_configs.0.filters: no counterpart" in comments
