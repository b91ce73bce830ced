"""The short form of `make router-kills`: each kind of victim once."""

from pathlib import Path

import pytest

from tests.kills.assault import STREAMS, VICTIMS, Assault
from tests.support.logd import Logd

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


def test_whatever_is_killed_each_sink_has_each_record_once(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        assault = Assault(tmp_path, nats_url, logd, seed=1)
        try:
            assault.begin()
            for victim in VICTIMS:
                assault.strike(victim)
            assert assault.end() == []
        finally:
            assault.close()
