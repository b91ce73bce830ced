"""The source loki with the client that Python programs use, to the log."""

import logging
from pathlib import Path

import pytest
from logging_loki import LokiHandler

from tests.support.collecting import collecting, endpoint, records
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def test_lokis_handler_for_logging_with_a_name_and_password(tmp_path: Path, nats_url: str) -> None:
    (tmp_path / "password").write_text("secret")
    auth = {"scheme": "basic", "username": "till", "token_file": str(tmp_path / "password")}
    source = {"type": "loki", "listen": "127.0.0.1:0", "auth": auth}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        handler = LokiHandler(
            url=f"http://{endpoint(collector, 'loki')}/loki/api/v1/push",
            tags={"app": "shop"}, auth=("till", "secret"), version="1",
        )  # fmt: skip
        logger = logging.Logger("till.orders")  # noqa: LOG001 - no other test has its handler
        logger.addHandler(handler)
        for number in range(50):
            logger.error("order %d", number, extra={"tags": {"lane": "7"}})
        wait_until(lambda: len(records(logd, "logs")) == 50)
        found = records(logd, "logs")
        assert sorted(one["body"] for one in found) == sorted(f"order {n}" for n in range(50))
        assert {one["severity_text"] for one in found} == {"ERROR"}
        assert {one["resource"]["service.name"] for one in found} == {"shop"}
        assert found[0]["attributes"] == {
            "app": "shop", "severity": "error", "logger": "till.orders", "lane": "7",
        }  # fmt: skip
        handler.close()
