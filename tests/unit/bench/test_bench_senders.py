"""What scenario q sends, and by which protocols."""

import pytest

from penstock.collector.decode.senders.socket import CODECS
from penstock.collector.registry import SOURCES
from tests.bench.protocol_bodies import BATCH
from tests.bench.senders import FAMILIES, PROTOCOLS

ADDRESSES = {"listen", "tcp", "udp", "grpc", "http"}
"""Keys of addresses where a source takes records."""


def test_each_source_that_takes_records_from_a_network_has_a_row() -> None:
    sources = {
        name
        for name in SOURCES.types()
        if SOURCES.is_own(name) and ADDRESSES & SOURCES.kind(name).settings.model_fields.keys()
    }
    assert {protocol.source for protocol in PROTOCOLS.values()} == sources


def test_each_codec_of_the_source_socket_has_a_row() -> None:
    codecs = {p.options["codec"] for p in PROTOCOLS.values() if p.source == "socket"}
    assert codecs == CODECS.keys()


def test_no_protocol_stands_in_two_families() -> None:
    assert sum(map(len, FAMILIES.values())) == len(PROTOCOLS)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_bodies_hold_records_and_differ(name: str) -> None:
    first, second = map(PROTOCOLS[name].make, (0, 1))
    assert first != second
    assert len(first) > 16 * BATCH
