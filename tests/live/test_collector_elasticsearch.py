"""The source elasticsearch with the official clients of two products, to the log."""

from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from elasticsearch.helpers import BulkIndexError
from elasticsearch.helpers import bulk as elastic_bulk
from opensearchpy import OpenSearch
from opensearchpy.helpers import bulk as opensearch_bulk

from tests.support.certificates import Authority
from tests.support.collecting import collecting, endpoint, records
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 1000


def documents(action: str) -> list[dict[str, Any]]:
    return [
        {
            "_op_type": action, "_index": f"logs-{action}", "message": f"{action} {n}",
            "@timestamp": "2025-11-27T18:40:00Z", "log.level": "error",
        }
        for n in range(COUNT)
    ]  # fmt: skip


def test_the_official_clients_over_tls_with_a_token(tmp_path: Path, nats_url: str) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.sign("collector", "IP:127.0.0.1")
    (tmp_path / "password").write_text("secret")
    source = {
        "type": "elasticsearch", "listen": "127.0.0.1:0",
        "tls": {"cert_file": str(server.cert), "key_file": str(server.key)},
        "auth": {"scheme": "basic", "username": "shop", "token_file": str(tmp_path / "password")},
    }  # fmt: skip
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        url = f"https://{endpoint(collector, 'elasticsearch')}"
        options = {"ca_certs": str(authority.cert)}
        with Elasticsearch(url, basic_auth=("shop", "secret"), **options) as elastic:
            assert elastic.info()["tagline"] == "You Know, for Search", "the product is checked"
            assert elastic_bulk(elastic, documents("create")) == (COUNT, [])
            with pytest.raises(BulkIndexError) as refused:
                elastic_bulk(elastic, [{"_op_type": "delete", "_index": "a", "_id": "1"}])
            assert refused.value.errors[0]["delete"]["status"] == 400
        with OpenSearch(url, http_auth=("shop", "secret"), **options) as opensearch:
            assert opensearch_bulk(opensearch, documents("index")) == (COUNT, [])
        wait_until(lambda: len(records(logd, "logs")) == 2 * COUNT)
        found = records(logd, "logs")
        assert {one["body"] for one in found} == {
            f"{action} {n}" for action in ("create", "index") for n in range(COUNT)
        }
        assert {one["severity_text"] for one in found} == {"ERROR"}
        services = {one["resource"]["service.name"] for one in found}
        assert services == {"logs-create", "logs-index"}
