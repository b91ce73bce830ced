"""What the fakes of products say, and the products say too: the same tests run against both.

Without more, a fake is asked. An environment variable names a real product instead; what it holds
afterwards is a few records of these tests.

    PENSTOCK_TEST_SPLUNK_URL=https://host:8088         PENSTOCK_TEST_SPLUNK_TOKEN=…
      with indexer acknowledgement:                    PENSTOCK_TEST_SPLUNK_ACK_TOKEN=…
    PENSTOCK_TEST_ELASTICSEARCH_URL=https://host:9200  PENSTOCK_TEST_ELASTICSEARCH_API_KEY=…
    PENSTOCK_TEST_LOKI_URL=http://host:3100            PENSTOCK_TEST_LOKI_TENANT=…
    PENSTOCK_TEST_OTLP_URL=http://host:4318            PENSTOCK_TEST_OTLP_GRPC=host:4317

Over gRPC, a real OpenTelemetry collector is asked in any case.
"""

import json
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.fake_elasticsearch import API_KEY, FakeElasticsearch
from tests.support.fake_loki import TENANT, FakeLoki
from tests.support.fake_otlp import FakeOtlp, serve_grpc
from tests.support.fake_splunk import TOKEN, FakeSplunk
from tests.support.fault_door import Backend, FaultDoor
from tests.support.rotel import Rotel
from tests.support.sink_batches import NOW_NS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

Ask = Callable[..., tuple[int, Any]]


@contextmanager
def destination(name: str, fake: Callable[[], Backend]) -> Iterator[str]:
    """The URL of the real product, or of its fake."""
    if real := os.environ.get(f"PENSTOCK_TEST_{name}_URL"):
        yield real.rstrip("/")
        return
    door = FaultDoor(fake())
    yield door.url
    door.close()


def ask(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    """The status of an answer and its body, as JSON where it is."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            status, said = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, said = error.code, error.read()
    try:
        return status, json.loads(said)
    except ValueError:
        return status, said


@pytest.fixture
def splunk() -> Iterator[Ask]:
    token = os.environ.get("PENSTOCK_TEST_SPLUNK_TOKEN", TOKEN)
    with destination("SPLUNK", FakeSplunk) as url:

        def post(body: bytes, authorization: str = f"Splunk {token}") -> tuple[int, Any]:
            named = {"Authorization": authorization} if authorization else {}
            return ask(f"{url}/services/collector/event", body, **named)

        yield post


def test_splunk_takes_events_one_after_the_other(splunk: Ask) -> None:
    status, said = splunk(b'{"event":"a"}{"event":{"b":1},"fields":{"c":"d"}}')
    assert (status, said["code"]) == (200, 0)


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b"", 5, None),
        (b'{"event":"a"}{"event":', 6, 1),
        (b'{"event":"a"}{"source":"b"}', 12, 1),
        (b'{"event":""}', 13, 0),
    ],
)
def test_splunk_names_the_event_it_refuses(
    splunk: Ask, body: bytes, code: int, number: int | None
) -> None:
    status, said = splunk(body)
    assert (status, said["code"]) == (400, code)
    assert number is None or said["invalid-event-number"] == number


def test_splunk_refuses_whoever_has_no_token(splunk: Ask) -> None:
    assert splunk(b'{"event":"a"}', authorization="")[0] == 401
    status, said = splunk(b'{"event":"a"}', authorization=f"Splunk {uuid.uuid4()}")
    assert (status, said["code"]) == (403, 4)


@pytest.fixture
def acknowledging() -> Iterator[Ask]:
    """Splunk with a token that has indexer acknowledgement; asked in a channel, or in none."""
    token = os.environ.get("PENSTOCK_TEST_SPLUNK_ACK_TOKEN", TOKEN)
    if "PENSTOCK_TEST_SPLUNK_URL" in os.environ and token == TOKEN:
        pytest.skip("PENSTOCK_TEST_SPLUNK_ACK_TOKEN names no token")
    with destination("SPLUNK", lambda: FakeSplunk(use_ack=True)) as url:

        def post(path: str, body: Any, channel: str = "") -> tuple[int, Any]:
            named = {"Authorization": f"Splunk {token}"}
            if channel:
                named["X-Splunk-Request-Channel"] = channel
            return ask(f"{url}/services/collector/{path}", json.dumps(body).encode(), **named)

        yield post


def test_splunk_acknowledges_what_is_indexed_once(acknowledging: Ask) -> None:
    channel = str(uuid.uuid4())
    status, said = acknowledging("event", {"event": "a"}, channel)
    assert (status, said["code"]) == (200, 0)
    own = said["ackId"]
    question = {"acks": [own, own + 1]}

    def answered() -> Any:
        return acknowledging("ack", question, channel)[1]["acks"]

    first = wait_until(lambda: (it := answered())[str(own)] and it, what="the event is indexed")
    assert first == {str(own): True, str(own + 1): False}
    assert answered() == {str(own): False, str(own + 1): False}


def test_splunk_counts_acknowledgements_in_each_channel(acknowledging: Ask) -> None:
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    ids = [acknowledging("event", {"event": "a"}, it)[1]["ackId"] for it in (one, one, other)]
    assert ids == [0, 1, 0]


@pytest.mark.parametrize(("path", "body"), [("event", {"event": "a"}), ("ack", {"acks": [0]})])
def test_splunk_wants_a_channel_where_it_acknowledges(
    acknowledging: Ask, path: str, body: Any
) -> None:
    status, said = acknowledging(path, body)
    assert (status, said["code"]) == (400, 10)


@pytest.fixture
def elasticsearch() -> Iterator[Ask]:
    key = os.environ.get("PENSTOCK_TEST_ELASTICSEARCH_API_KEY", API_KEY)
    with destination("ELASTICSEARCH", FakeElasticsearch) as url:
        index = f"penstock-contract-{uuid.uuid4().hex[:8]}"

        def bulk(*pairs: tuple[str, dict[str, Any]], end: bytes = b"\n") -> tuple[int, Any]:
            lines = [
                line
                for identity, document in pairs
                for line in ({"create": {"_index": index, "_id": identity}}, document)
            ]
            body = b"\n".join(json.dumps(line).encode() for line in lines) + end
            headers = {"Content-Type": "application/x-ndjson", "Authorization": f"ApiKey {key}"}
            return ask(f"{url}/_bulk", body, **headers)

        yield bulk


def statuses(said: Any) -> list[int]:
    return [item["create"]["status"] for item in said["items"]]


def test_a_document_is_created_once(elasticsearch: Ask) -> None:
    document = {"@timestamp": "2026-11-21T08:00:00.000000001Z", "a": 1}
    assert statuses(elasticsearch(("1", document))[1]) == [201]
    status, said = elasticsearch(("1", document), ("2", document))
    assert (status, said["errors"], statuses(said)) == (200, True, [409, 201])


def test_a_document_that_does_not_fit_the_mapping_is_refused_alone(elasticsearch: Ask) -> None:
    time = {"@timestamp": "2026-11-21T08:00:00.000000001Z"}
    said = elasticsearch(("1", time | {"a": 1}), ("2", time | {"a": {"b": 1}}))[1]
    assert statuses(said) == [201, 400]
    assert said["items"][1]["create"]["error"]["type"]


def test_a_text_takes_a_number_and_a_number_no_word(elasticsearch: Ask) -> None:
    first = {"@timestamp": "2026-11-21T08:00:00.000000001Z", "a": 1, "b": "x"}
    said = elasticsearch(("1", first), ("2", first | {"b": 7}), ("3", first | {"a": "word"}))[1]
    assert statuses(said) == [201, 201, 400]


def test_a_bulk_request_ends_with_a_newline(elasticsearch: Ask) -> None:
    time = {"@timestamp": "2026-11-21T08:00:00.000000001Z"}
    assert elasticsearch(("1", time), end=b"")[0] == 400


@pytest.fixture
def loki() -> Iterator[Ask]:
    tenant = os.environ.get("PENSTOCK_TEST_LOKI_TENANT", TENANT)
    with destination("LOKI", FakeLoki) as url:
        label = uuid.uuid4().hex

        def push(*entries: list[Any], labels: dict[str, str] | None = None) -> tuple[int, Any]:
            stream = {"stream": labels or {"run": label}, "values": list(entries)}
            body = json.dumps({"streams": [stream]}).encode()
            headers = {"Content-Type": "application/json", "X-Scope-OrgID": tenant}
            return ask(f"{url}/loki/api/v1/push", body, **headers)

        yield push


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(0, 204), (3600, 400), (-8 * 86_400, 400)], ids=str
)
def test_loki_takes_what_is_neither_too_old_nor_too_new(
    loki: Ask, ahead_s: int, status: int
) -> None:
    assert loki([str(NOW_NS + ahead_s * 10**9), "line", {"a": "b"}])[0] == status


def test_loki_takes_text_only(loki: Ask) -> None:
    assert loki([str(NOW_NS), "line", {"a": 1}])[0] == 400
    assert loki([str(NOW_NS), "line"], labels={"not a label": "x"})[0] == 400


@pytest.fixture
def otlp() -> Iterator[Ask]:
    with destination("OTLP", FakeOtlp) as url:

        def export(signal: str, body: bytes) -> tuple[int, Any]:
            return ask(f"{url}/v1/{signal}", body, Content_Type="application/x-protobuf")

        yield export


@pytest.mark.parametrize("signal", ["logs", "traces", "metrics"])
def test_otlp_takes_an_empty_request_and_no_garbage(otlp: Ask, signal: str) -> None:
    assert otlp(signal, b"")[0] == 200
    assert otlp(signal, b"\xff\xff\xff")[0] == 400


@contextmanager
def grpc_receiver(peer: str, directory: Path) -> Iterator[str]:
    """Where one listens: the one that is named, or else the fake, or a real collector before it."""
    if real := os.environ.get("PENSTOCK_TEST_OTLP_GRPC"):
        yield real
        return
    server, port = serve_grpc(fake := FakeOtlp())
    if peer == "fake":
        yield f"127.0.0.1:{port}"
    else:
        behind = FaultDoor(fake)
        rotel = Rotel(behind.url, directory)
        yield rotel.grpc.removeprefix("http://")
        rotel.close()
        behind.close()
    server.stop(None).wait()


Export = Callable[[str, bytes], grpc.StatusCode]


@pytest.fixture(params=["fake", "rotel"])
def otlp_grpc(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Export]:
    with grpc_receiver(request.param, tmp_path) as place, grpc.insecure_channel(place) as channel:

        def export(method: str, body: bytes) -> grpc.StatusCode:
            call: Any = channel.unary_unary(f"/opentelemetry.proto.collector.{method}/Export")
            try:
                call(body, timeout=10)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        yield export


@pytest.mark.parametrize(
    "service", ["logs.v1.LogsService", "trace.v1.TraceService", "metrics.v1.MetricsService"]
)
def test_otlp_by_grpc_takes_an_empty_request_and_no_garbage(
    otlp_grpc: Export, service: str
) -> None:
    assert otlp_grpc(service, b"") is grpc.StatusCode.OK
    assert otlp_grpc(service, b"\xff\xff\xff") is grpc.StatusCode.INTERNAL
    assert otlp_grpc(f"{service}s", b"") is grpc.StatusCode.UNIMPLEMENTED
