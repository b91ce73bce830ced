"""The source splunk_hec with the client that Python programs use, to the log."""

import json
import logging
from pathlib import Path

import pytest
import requests
from splunk_handler import SplunkHandler

from tests.support.certificates import Authority
from tests.support.collecting import collecting, endpoint, records
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

CHANNEL = "fe0ecfad-13d5-401b-847d-77833bd77131"


def test_splunks_handler_for_logging_over_tls_with_a_token(tmp_path: Path, nats_url: str) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.sign("collector", "IP:127.0.0.1")
    (tmp_path / "token").write_text("secret")
    source = {
        "type": "splunk_hec", "listen": "127.0.0.1:0", "service": "from_source",
        "tls": {"cert_file": str(server.cert), "key_file": str(server.key)},
        "auth": {"token_file": str(tmp_path / "token")},
    }  # fmt: skip
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        host, port = endpoint(collector, "splunk_hec").split(":")
        handler = SplunkHandler(
            host=host, port=port, token="secret", index="main", source="shop", hostname="till-1",
            flush_interval=0, retry_count=0, verify=str(authority.cert),
        )  # fmt: skip
        handler.setFormatter(logging.Formatter('{"level": "%(levelname)s", "message": "%(msg)s"}'))
        logger = logging.Logger("shop")  # noqa: LOG001 - no other test has its handler
        logger.addHandler(handler)
        for number in range(20):
            logger.warning(f"order {number}")  # noqa: G004 - the handler's text
        wait_until(lambda: len(records(logd, "logs")) == 20)
        found = records(logd, "logs")
        assert sorted(one["body"] for one in found) == sorted(f"order {n}" for n in range(20))
        assert {one["severity_text"] for one in found} == {"WARN"}
        assert {one["resource"]["service.name"] for one in found} == {"shop"}
        assert {one["resource"]["host.name"] for one in found} == {"till-1"}
        assert {one["attributes"]["com.splunk.index"] for one in found} == {"main"}
        handler.shutdown()


def test_what_is_acknowledged_outlives_a_kill(tmp_path: Path, nats_url: str) -> None:
    source = {"type": "splunk_hec", "listen": "127.0.0.1:0", "acknowledgement": True}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        home = f"http://{endpoint(collector, 'splunk_hec')}/services/collector"
        head = {"x-splunk-request-channel": CHANNEL}
        body = "".join(json.dumps({"event": f"event {n}"}) for n in range(500))
        answer = requests.post(home, body, headers=head, timeout=20)
        acks = requests.post(f"{home}/ack", '{"acks": [0]}', headers=head, timeout=20)
        assert (answer.json()["ackId"], acks.json()) == (0, {"acks": {"0": True}})
        collector.restart(kill=True)
        wait_until(lambda: len({one["body"] for one in records(logd, "logs")}) == 500)
