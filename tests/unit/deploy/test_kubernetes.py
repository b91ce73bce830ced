"""deploy/k8s: what Kubernetes' schemas say, and rules that schemas do not hold.

No cluster runs here. The rules are written from the documentation of StatefulSets, probes, pod
security and kustomize; they are a strict reading of structure, not a proof that it runs.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509
from pydantic import BaseModel

from penstock.base.clock import SystemClock
from penstock.collector.config import CollectorConfig
from penstock.collector.sources.files.settings import FileSettings
from penstock.collector.sources.kubernetes_events import KubernetesEventsSettings
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.init import init
from penstock.deploy.site import site_of
from penstock.logd.config import LogdConfig
from penstock.router.job.config import JobConfig
from penstock.service.config import load_config
from penstock.service.tracing import address_of
from tests.support.schemas import kubernetes_mistakes

ROOT = Path(__file__).resolve().parents[3]
DIRECTORY = ROOT / "deploy" / "k8s"
NAME = "app.kubernetes.io/name"
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
VERSIONS = ("1.30", "1.37")

KUSTOMIZATION: dict[str, Any] = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())
DOCUMENTS: list[dict[str, Any]] = [
    document
    for name in KUSTOMIZATION["resources"]
    for document in yaml.safe_load_all((DIRECTORY / name).read_text())
]


def pod(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["template"]["spec"]
    return found


def one(kind: str, name: str) -> dict[str, Any]:
    [found] = [d for d in DOCUMENTS if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


PODS = [document for document in DOCUMENTS if document["kind"] in WORKLOADS]
NAMES = [document["metadata"]["name"] for document in PODS]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_document(version: str) -> None:
    assert kubernetes_mistakes(DOCUMENTS, version) == []


def test_a_mistake_would_be_found() -> None:
    wrong = [{**DOCUMENTS[0], "speck": {}}]
    assert kubernetes_mistakes(wrong, VERSIONS[-1]) != []


def test_the_cluster_to_try_it_on_has_a_node_for_each_logd_and_every_image_is_loaded() -> None:
    nodes = yaml.safe_load((DIRECTORY / "kind.yaml").read_text())["nodes"]
    logd = one("StatefulSet", "logd")
    assert [node["role"] for node in nodes].count("worker") == logd["spec"]["replicas"]
    text = (ROOT / "docs" / "containers.md").read_text()
    (load,) = [line for line in text.splitlines() if "kind load docker-image" in line]
    images = {
        container["image"]
        for document in PODS
        for container in pod(document)["containers"]
        if container["image"].startswith("penstock/")
    }
    assert {word.rpartition(":")[0] for word in load.split() if "penstock/" in word} == images


@pytest.mark.parametrize("document", PODS, ids=NAMES)
def test_containers_are_closed(document: dict[str, Any]) -> None:
    spec = pod(document)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("document", PODS, ids=NAMES)
def test_what_is_named_is_there(document: dict[str, Any]) -> None:
    """Labels that select, ports that are asked, volumes that are mounted, secrets that are made."""
    template, spec = document["spec"]["template"], pod(document)
    chosen = document["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= template["metadata"]["labels"].items()
    claims = document["spec"].get("volumeClaimTemplates", [])
    volumes = {v["name"] for v in spec["volumes"]} | {c["metadata"]["name"] for c in claims}
    secrets = {generator["name"] for generator in KUSTOMIZATION["secretGenerator"]}
    named = {v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
    assert named <= secrets
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
    for container in spec["containers"]:
        ports = {port["name"] for port in container["ports"]}
        for probe in ("readinessProbe", "livenessProbe"):
            asked = container[probe].get("httpGet") or container[probe]["tcpSocket"]
            assert asked["port"] in ports
    images = {image["name"] for image in KUSTOMIZATION["images"]}
    ours = {c["image"] for c in spec["containers"] if c["image"].startswith("penstock/")}
    assert ours <= images


TARGETS = {"collectors": ["collector", "kubernetes-events"]}
"""Pods behind a service whose name is not theirs: the console asks each of them."""


@pytest.mark.parametrize(
    "service",
    ["nats", "logd", "collector", "collectors", "kubernetes-events", "router", "console"],
)
def test_services_lead_to_pods_that_listen(service: str) -> None:
    spec = one("Service", service)["spec"]
    chosen = spec["selector"].items()
    targets = [d for d in PODS if chosen <= d["spec"]["template"]["metadata"]["labels"].items()]
    assert [d["metadata"]["name"] for d in targets] == TARGETS.get(service, [service])
    for target in targets:
        listens = {p["name"]: p["containerPort"] for p in pod(target)["containers"][0]["ports"]}
        assert all(listens[port["targetPort"]] == port["port"] for port in spec["ports"])


def test_logd_is_a_set_that_survives_the_loss_of_one() -> None:
    found = one("StatefulSet", "logd")["spec"]
    headless = one("Service", found["serviceName"])["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"], "nodes meet before any of them is ready"
    assert found["podManagementPolicy"] == "Parallel", "none is ready before a majority runs"
    labels = found["selector"]["matchLabels"]
    [apart] = found["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == labels
    budget = one("PodDisruptionBudget", "logd")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
    assert found["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    assert found["updateStrategy"]["type"] == "RollingUpdate"


def test_there_are_never_two_drivers_of_a_job() -> None:
    found = one("Deployment", "router")["spec"]
    assert (found["replicas"], found["strategy"]["type"]) == (1, "Recreate")


def test_there_are_never_two_nats_that_know_nothing_of_each_other() -> None:
    found = one("Deployment", "nats")["spec"]
    assert (found["replicas"], found["strategy"]["type"]) == (1, "Recreate")


@pytest.mark.parametrize("name", ["logd", "collector", "router", "console"])
def test_a_probe_that_kills_asks_whether_it_answers_and_not_how_it_is(name: str) -> None:
    """Degraded is ready, and a node that waits for others is alive."""
    [document] = [document for document in PODS if document["metadata"]["name"] == name]
    [container] = pod(document)["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    ready = container["readinessProbe"]["httpGet"]
    assert ready["path"] == "/healthz"
    assert ready["scheme"] == container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_the_spool_on_the_host_is_for_the_collector_alone() -> None:
    [container] = pod(one("DaemonSet", "collector"))["initContainers"]
    command = container["command"]
    assert command[:4] == ["install", "-d", "-m", "0700"]
    assert set(container["securityContext"]["capabilities"]["add"]) == {"CHOWN", "FOWNER"}


def test_the_collector_reads_what_containers_print_and_may_ask_for_their_pods(
    tmp_path: Path,
) -> None:
    init(tmp_path, site_of("kubernetes", 3), SystemClock())
    config = load_config(
        CollectorConfig, tmp_path / "collector" / "collector.yaml", env_prefix="PENSTOCK_COLLECTOR"
    )
    [source] = [one for one in config.sources if isinstance(one, FileSettings)]
    section = source.kubernetes
    assert section is not None
    assert (section.ask, section.node, source.format) == ("api", None, "cri")

    spec = pod(one("DaemonSet", "collector"))
    [container] = spec["containers"]
    mounts = {Path(mount["mountPath"]): mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for pattern in (*source.include, *source.exclude):
        [place] = [path for path in mounts if Path(pattern).is_relative_to(path)]
        assert mounts[place]["readOnly"] is True
        assert volumes[mounts[place]["name"]]["hostPath"]["path"] == str(place)
    variables = {variable["name"]: variable["valueFrom"] for variable in container["env"]}
    assert variables["PENSTOCK_COLLECTOR__NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert spec["securityContext"]["supplementalGroups"] == [0], "the files are root's group's"

    account = mounts[section.token_file.parent]
    made = volumes[account["name"]]["projected"]["sources"]
    assert made[0]["serviceAccountToken"]["path"] == section.token_file.name
    assert made[1]["configMap"]["items"][0]["path"] == section.ca_file.name
    assert section.ca_file.parent == section.token_file.parent
    [opener] = spec["initContainers"]
    assert account["name"] not in [mount["name"] for mount in opener["volumeMounts"]]

    who = one("ServiceAccount", spec["serviceAccountName"])
    binding = one("ClusterRoleBinding", "penstock-collector")
    [subject] = binding["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": who["metadata"]["name"],
        "namespace": KUSTOMIZATION["namespace"],
    }
    role = one(binding["roleRef"]["kind"], binding["roleRef"]["name"])
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


def test_one_collector_takes_the_clusters_events_and_may_do_nothing_else(tmp_path: Path) -> None:
    found = one("StatefulSet", "kubernetes-events")["spec"]
    assert found["replicas"] == 1, "each would take all of them"
    [container] = found["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    init(tmp_path, site_of("kubernetes", 3), SystemClock())
    config = load_config(
        CollectorConfig,
        tmp_path / "collector" / "collector.yaml",
        env_prefix="PENSTOCK_COLLECTOR",
        environ={"PENSTOCK_COLLECTOR__SOURCES": variables["PENSTOCK_COLLECTOR__SOURCES"]},
    )
    [source] = config.sources
    assert isinstance(source, KubernetesEventsSettings)
    mounts = {Path(mount["mountPath"]): mount["name"] for mount in container["volumeMounts"]}
    [account] = [one for one in found["template"]["spec"]["volumes"] if one["name"] == "account"]
    assert mounts[source.token_file.parent] == mounts[source.ca_file.parent] == "account"
    [token, authority] = account["projected"]["sources"]
    assert token["serviceAccountToken"]["path"] == source.token_file.name
    assert authority["configMap"]["items"][0]["path"] == source.ca_file.name
    kept = [claim["metadata"]["name"] for claim in found["volumeClaimTemplates"]]
    assert mounts[config.data_dir.parent] in kept, "its position outlives the pod"
    role = one("ClusterRole", "penstock-kubernetes-events")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]}
    ]


def test_secrets_are_the_files_that_init_makes(tmp_path: Path) -> None:
    replicas = one("StatefulSet", "logd")["spec"]["replicas"]
    init(tmp_path / "secrets", site_of("kubernetes", replicas), SystemClock())
    for generator in KUSTOMIZATION["secretGenerator"]:
        for file in generator["files"]:
            assert (tmp_path / file).is_file(), file
            assert "operator" not in file
    named = {file for g in KUSTOMIZATION["secretGenerator"] for file in g["files"]}
    for part in ("logd", "collector", "router", "console"):
        made = {str(p.relative_to(tmp_path)) for p in (tmp_path / "secrets" / part).iterdir()}
        assert made - {"secrets/router/backends.yaml"} <= named


def test_the_console_asks_services_that_there_are_and_shows_nothing_to_strangers(
    tmp_path: Path,
) -> None:
    init(tmp_path, site_of("kubernetes", 3), SystemClock())
    config = load_config(
        ConsoleConfig, tmp_path / "console" / "console.yaml", env_prefix="PENSTOCK_CONSOLE"
    )
    services = {d["metadata"]["name"]: d["spec"] for d in DOCUMENTS if d["kind"] == "Service"}
    for url in config.parts.values():
        host, port = urlsplit(url).hostname, urlsplit(url).port
        assert host is not None
        spec = services[host.rpartition(".")[2]]  # of a node of the set, that of the set
        assert port in [one["port"] for one in spec["ports"]]
        assert spec["clusterIP"] == "None", "what is not well is asked, too"
        assert spec["publishNotReadyAddresses"]
    assert config.each_address == ("collector",)
    assert not config.anybody_may_look
    assert config.tls is not None
    assert config.admin_access is not None
    names = x509.load_pem_x509_certificate((tmp_path / "collector" / "cert.pem").read_bytes())
    found = names.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "collectors" in found.get_values_for_type(x509.DNSName)
    tokens = [(tmp_path / "console" / f"{name}.token").read_text() for name in ("read", "console")]
    assert len({*tokens}) == 2
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize(
    ("part", "file", "model"),
    [
        ("logd", "logd-0-logd", LogdConfig), ("collector", "collector", CollectorConfig),
        ("router", "router", JobConfig), ("console", "console", ConsoleConfig),
    ],
)  # fmt: skip
def test_one_setting_has_every_part_send_spans_of_its_own_work(
    tmp_path: Path, part: str, file: str, model: type[BaseModel]
) -> None:
    init(tmp_path, site_of("kubernetes", 3), SystemClock())
    [made] = KUSTOMIZATION["configMapGenerator"]
    [(key, _, section)] = [literal.partition("=") for literal in made["literals"]]
    [workload] = [document for document in PODS if document["metadata"]["name"] == part]
    variables = {one["name"]: one for one in pod(workload)["containers"][0]["env"]}
    named = variables[f"PENSTOCK_{part.upper()}__TRACING"]["valueFrom"]["configMapKeyRef"]
    assert named == {"name": made["name"], "key": key}
    for enabled in (False, True):
        said = section.replace("enabled: false", f"enabled: {str(enabled).lower()}")
        config: Any = load_config(
            model,
            tmp_path / part / f"{file}.yaml",
            env_prefix=f"PENSTOCK_{part.upper()}",
            environ={f"PENSTOCK_{part.upper()}__TRACING": said},
        )
        assert config.tracing.enabled is enabled
        host, port = address_of(config.tracing.endpoint)
        assert port in [one["port"] for one in one("Service", host)["spec"]["ports"]]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_kustomize_builds_it(tmp_path: Path) -> None:
    place = tmp_path / "k8s"
    shutil.copytree(DIRECTORY, place, ignore=shutil.ignore_patterns("secrets"))
    init(place / "secrets", site_of("kubernetes", 3), SystemClock())
    built = subprocess.run(
        ["kubectl", "kustomize", str(place)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    documents = list(yaml.safe_load_all(built.stdout))
    assert {d["metadata"].get("namespace", "penstock") for d in documents} == {"penstock"}
    assert sum(d["kind"] == "Secret" for d in documents) == 5
    assert kubernetes_mistakes(documents, VERSIONS[-1]) == []
