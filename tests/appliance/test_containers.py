"""deploy/compose.yaml for real: records end to end, fault after fault, nothing acked lost.

`make test-containers` makes the images and runs this. The tests of this file are one story, told in
order, of one deployment: each begins with what the one before has left.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.compose import UP_S, Deployment
from tests.support.otlp_sender import OtlpSender
from tests.support.waiting import wait_until

NODES = ("logd-1", "logd-2", "logd-3")
SERVICES = ("nats", *NODES, "collector", "router", "console")
HEALTHY_S = 120
IMAGE_MB_MAX = {"collector": 500, "logd": 480, "router": 1050}
LAKE = "/var/lib/penstock/lake/kind=log"
READ_LAKE = f"""
import json, pathlib, pyarrow.dataset as d
if pathlib.Path("{LAKE}").is_dir():
    rows = d.dataset("{LAKE}", format="parquet").to_table(
        columns=["body"], filter=d.field("service") == "appliance")
    print(json.dumps(rows.column("body").to_pylist()))
"""

ASK_EVERY_DOOR = """
import json, socket, ssl, urllib.error, urllib.request
from pathlib import Path
from penstock.logd.client import Access, LogClient, calls
from penstock.logd.errors import RefusedError
tls = ssl.create_default_context(cafile="/etc/penstock/router/ca.pem")
def code(host, port, token=""):
    request = urllib.request.Request(f"https://{host}:{port}/status")
    if token: request.add_header("Authorization", "Bearer " + token)
    try:
        return urllib.request.urlopen(request, timeout=20, context=tls).status
    except urllib.error.HTTPError as error:
        return error.code
doors = {"collector": 9295, "logd-1": 9294, "logd-2": 9294, "logd-3": 9294}
own = open("/etc/penstock/router/admin.token").read().strip()
with socket.create_connection(("nats", 4222), timeout=20) as plain:
    plain.recv(65536)
    with tls.wrap_socket(plain, server_hostname="nats") as nats:
        nats.sendall(b"CONNECT {}\\r\\nPING\\r\\n")
        said = b"".join(iter(lambda: nats.recv(65536), b"")).decode()
files = Path("/etc/penstock/router")
access = Access(ca_file=files / "ca.pem", token_file=files / "token")
with LogClient("logd-1:9293", access=access) as log:
    reads = len(log.streams())
    try:
        log.ask(calls.delete_stream("logs"))
        refused = "nobody refused"
    except RefusedError as error:
        refused = error.code
print(json.dumps({"admin": {host: code(host, port) for host, port in doors.items()},
                  "router's own": code("localhost", 9296, own), "nats": said,
                  "delete": refused, "reads": reads}))
"""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    found = Deployment()
    begun = time.monotonic()  # noqa: TID251 - what docs/containers.md says is measured here
    try:
        found.compose("build", "collector", "init", "router")
        built = time.monotonic()  # noqa: TID251 - as above
        found.up()
        up = time.monotonic()  # noqa: TID251 - as above
        print(f"\nbuilt in {built - begun:.0f} s, up and healthy in {up - built:.0f} s")  # noqa: T201
        yield found
    except BaseException:
        print(found.logs())  # noqa: T201 - why it is not healthy
        raise
    finally:
        found.down()


@pytest.fixture(scope="module")
def sender(deployment: Deployment) -> Iterator[OtlpSender]:
    found = OtlpSender(deployment.otlp_port)
    found.start()
    yield found
    found.stop()


def goes_on(sender: OtlpSender, more: int = 50) -> None:
    """Wait until the collector has acknowledged that many more records."""
    enough = len(sender.acked) + more
    wait_until(lambda: len(sender.acked) >= enough, within_s=60, what="records are acked")


def landed(deployment: Deployment) -> Counter[str]:
    """How often each record's id is in the lake."""
    said = deployment.compose("exec", "-T", "router", "python", "-c", READ_LAKE, check=False)
    return Counter(json.loads(said) if said.strip() else [])


def await_landed(deployment: Deployment, ids: list[str]) -> None:
    """Wait until the lake has all of these."""
    missing = 0

    def all_there() -> bool:
        nonlocal missing
        missing = len(set(ids) - set(landed(deployment)))
        return missing == 0

    wait_until(all_there, within_s=60, what="the lake has what was acked")


def await_in_sync(deployment: Deployment) -> None:
    """Wait until each of the five streams has three replicas in sync."""
    ask = ("run", "--rm", "-T", "cli", "logd", "streams", "ls")
    wait_until(
        lambda: deployment.compose(*ask, check=False).count("3/3") == 5,
        within_s=60,
        what="every replica is in sync again",
    )


def test_it_is_healthy_and_closed(deployment: Deployment) -> None:
    assert set(deployment.health(*SERVICES).values()) == {"healthy"}
    for service in SERVICES:
        facts = deployment.inspect(service)
        assert facts["Config"]["User"] == "10001:10001"
        assert facts["HostConfig"]["ReadonlyRootfs"], service
        assert facts["HostConfig"]["CapDrop"] == ["ALL"]
        ports = (facts["HostConfig"]["PortBindings"] or {}).values()
        assert {one["HostIp"] for bound in ports for one in bound} <= {"127.0.0.1"}, service
    page = deployment.get(deployment.console_port, "/")
    assert "<title>" in page
    asked = deployment.compose("run", "--rm", "-T", "cli", "logd", "streams", "ls")
    assert asked.count("3/3") == 5, asked


def test_without_a_key_logd_says_nothing(deployment: Deployment) -> None:
    refused = deployment.compose(
        "run", "--rm", "-T", "-e", "PENSTOCK_LOGD_TOKEN_FILE=", "cli", "logd", "streams", "ls",
        check=False,
    )  # fmt: skip
    assert "logs" not in refused


def test_access_is_closed_after_the_first_start(deployment: Deployment) -> None:
    """From inside of the network, by a container that was taken over and what it has."""
    asked = deployment.compose("exec", "-T", "router", "python", "-c", ASK_EVERY_DOOR)
    found = json.loads(asked)
    assert found["admin"] == dict.fromkeys(("collector", *NODES), 401)
    assert found["router's own"] == 200, "the same question with the token that it has"
    assert "Authorization Violation" in found["nats"], "without a user"
    assert found["delete"] == "PERMISSION_DENIED", "with the key that it has"
    assert found["reads"] > 0


def test_the_console_shows_and_acts_for_whoever_has_its_token(deployment: Deployment) -> None:
    """What is no record becomes a dead letter of the lake, and is tried again from the page."""
    publish = 'penstock logd publish --nats "$(cat /etc/penstock/operator/nats.url)"'
    words = f"{publish} telemetry.logs.nobody 'no record'"
    deployment.compose("run", "--rm", "-T", "--entrypoint", "sh", "cli", "-c", words)
    listing = {"action": "list-dead-letters", "router": "router", "sink": "lake"}
    assert deployment.act(listing, "")[0] == 401
    assert deployment.act(listing, "no token of this console")[0] == 401
    token = deployment.compose("exec", "-T", "console", "cat", "/var/lib/penstock/console.token")
    wait_until(
        lambda: deployment.act(listing, token.strip())[1].get("files"),
        within_s=60,
        what="it is a dead letter",
    )
    replay = listing | {"action": "replay-dead-letters"}
    assert deployment.act(replay, token.strip())[0] == 200

    def replayed() -> dict[str, str]:
        [router] = json.loads(deployment.get(deployment.console_port, "/api/snapshot"))["routers"]
        last: dict[str, str] = router["replays"]["last"]
        return last

    wait_until(replayed, within_s=60, what="it was tried again")
    assert replayed()["problem"] == ""
    kept = "/var/lib/penstock/router/checkpoint/dead_letters/replays.ndjson"
    assert "console, for" in deployment.compose("exec", "-T", "router", "cat", kept)


@pytest.mark.parametrize("image", IMAGE_MB_MAX)
def test_images_are_small_and_say_what_is_in_them(deployment: Deployment, image: str) -> None:
    name = deployment.inspect({"logd": "logd-1"}.get(image, image))["Config"]["Image"]
    [facts] = json.loads(deployment.docker("image", "inspect", name))
    print(f"\n{image}: {facts['Size'] / 1e6:.0f} MB")  # noqa: T201 - for docs/containers.md
    assert facts["Size"] / 1e6 < IMAGE_MB_MAX[image]
    labels = facts["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == f"penstock-{image}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert facts["Config"]["Healthcheck"]["Test"] == ["CMD", "penstock-health"]
    cat = ["run", "--rm", "--network", "none", "--entrypoint", "cat", name]
    bill = json.loads(deployment.docker(*cat, "/usr/share/penstock/sbom.cdx.json"))
    found = {component["purl"].partition("@")[0] for component in bill["components"]}
    assert {"pkg:pypi/penstock", "pkg:pypi/pydantic", "pkg:deb/debian/tini"} <= found
    assert ("pkg:generic/spark-core_2.13" in found) == (image == "router")


def test_records_arrive(deployment: Deployment, sender: OtlpSender) -> None:
    goes_on(sender)
    await_landed(deployment, list(sender.acked))


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_that_crashes_comes_back(
    deployment: Deployment, sender: OtlpSender, service: str
) -> None:
    deployment.crash(service)
    deployment.await_healthy(*SERVICES, within_s=HEALTHY_S)
    goes_on(sender)


def test_a_node_that_is_cut_off_is_missed_by_nobody(
    deployment: Deployment, sender: OtlpSender
) -> None:
    network, node = f"{deployment.project}_default", deployment.container("logd-2")
    deployment.docker("network", "disconnect", network, node)
    try:
        goes_on(sender, 200)
        await_landed(deployment, list(sender.acked))
    finally:
        deployment.docker("network", "connect", "--alias", "logd-2", network, node)
    deployment.await_healthy(*SERVICES, within_s=HEALTHY_S)
    await_in_sync(deployment)


def test_nodes_are_replaced_one_after_another(deployment: Deployment, sender: OtlpSender) -> None:
    """The update of docs/containers.md: new containers on the volumes of the old."""
    for node in NODES:
        before = deployment.container(node)
        deployment.compose(
            "up", "-d", "--wait", "--wait-timeout", str(UP_S), "--no-deps", "--force-recreate", node
        )
        deployment.ids.pop(node)
        assert deployment.container(node) != before
        await_in_sync(deployment)
    goes_on(sender)


def test_one_variable_has_every_part_send_spans_of_its_own_work(
    deployment: Deployment, sender: OtlpSender
) -> None:
    before = deployment.ids_of(*SERVICES)
    assert own_spans(deployment) == set(), "nobody asked for them"
    deployment.environment |= {"PENSTOCK_TRACING": "true", "PENSTOCK_TRACING_SAMPLE": "0.2"}
    deployment.up()
    after = deployment.ids_of(*SERVICES)
    assert [one for one in SERVICES if before[one] == after[one]] == ["nats"]
    goes_on(sender)
    wait_until(
        lambda: own_spans(deployment) >= {"collector", "logd", "router"},
        within_s=120,
        what="spans of each part's own work are in the stream of spans",
    )


def own_spans(deployment: Deployment) -> set[str]:
    """Which parts have spans of their own work in the log."""
    ask = ("run", "--rm", "-T", "cli", "logd", "tail", "traces", "--json", "--from", "earliest")
    said = deployment.compose(*ask, "--subject", "telemetry.traces.*", check=False)
    return set(re.findall(r"telemetry\.traces\.penstock_(\w+)", said))


def test_all_of_it_is_restarted(deployment: Deployment, sender: OtlpSender) -> None:
    deployment.compose("restart", "-t", "30")
    deployment.await_healthy(*SERVICES, within_s=HEALTHY_S)
    goes_on(sender)


def test_up_again_changes_nothing(deployment: Deployment) -> None:
    before = deployment.ids_of(*SERVICES)
    deployment.up()
    assert deployment.ids_of(*SERVICES) == before
    assert "0 files written" in deployment.compose("logs", "--no-color", "--tail", "2", "init")


def test_nothing_that_was_acked_is_lost_or_there_twice(
    deployment: Deployment, sender: OtlpSender
) -> None:
    sender.stop()
    acked = list(sender.acked)
    print(f"\n{len(acked)} records acked, {sender.failures} requests failed")  # noqa: T201
    await_landed(deployment, acked)
    counts = landed(deployment)
    assert [one for one in acked if counts[one] != 1] == []
    assert [one for one, count in counts.items() if count != 1] == []
