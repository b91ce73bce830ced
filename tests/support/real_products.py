"""Real products in place of their fakes, for the sink tests: `tests/extended` starts them."""

import json
import os
import urllib.request
import uuid
from typing import Any, Final

from tests.support.fault_door import Proxy

ELASTICSEARCH_URL: Final = os.environ.get("PENSTOCK_TEST_ELASTICSEARCH_URL", "").rstrip("/")

_FOUND_MAX: Final = 10_000


class RealElasticsearch(Proxy):
    """Elasticsearch or OpenSearch; each has an index of its own."""

    def __init__(self) -> None:
        super().__init__(ELASTICSEARCH_URL)
        self._index = f"penstock-sink-{uuid.uuid4().hex[:8]}"
        self.keys = {"index": self._index}

    def messages(self) -> list[str]:
        """The text of each document."""
        query = f"/{self._index}/_search?ignore_unavailable=true&size={_FOUND_MAX}"
        self._ask(f"/{self._index}/_refresh?ignore_unavailable=true", "POST")
        found = self._ask(query)["hits"]["hits"]
        return [hit["_source"]["message"] for hit in found]

    def _ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(ELASTICSEARCH_URL + path, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())
