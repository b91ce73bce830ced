"""The emitter while everything goes wrong: what was emitted is acked, or counted as lost."""

import json
import random
import threading
from pathlib import Path

import pytest

from penstock.specs import Emitter, EmitterLimits
from tests.support.collector_socket import Answer, CollectorSocket, Received

pytestmark = pytest.mark.live

LIMITS = EmitterLimits(
    max_queue_records=200, max_batch_records=20, max_batch_age_ms=1, initial_backoff_ms=1,
    max_backoff_ms=10, ack_timeout_ms=50,
)  # fmt: skip


class Moods:
    """A collector that takes, stalls, refuses, loses answers and dies, as the dice say."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.calm = False
        self.collector = CollectorSocket(path, answer=self._answer, takes_silently=True)
        self.lock = threading.Lock()

    def _answer(self, received: Received) -> Answer:
        sequence = received.header["seq"]
        with self.lock:
            mood = 0.0 if self.calm else self.dice.random()
        if mood < 0.6:
            return {"ack": sequence}
        if mood < 0.7:
            return None  # taken, and the answer is lost
        if mood < 0.8:
            return {"nack": sequence, "reason": "spool_full", "retry": True}
        if mood < 0.85 and not received.repeat:
            return {"nack": sequence, "reason": "refused", "retry": False}
        self.collector.hang_up()
        return None

    def die(self) -> None:
        """And come back at once, knowing what it took."""
        self.collector.stop()
        self.collector.start()


@pytest.mark.parametrize("seed", range(4))
def test_sent_and_counted_drops_are_what_was_emitted(tmp_path: Path, seed: int) -> None:
    moods = Moods(tmp_path / "c.sock", seed)
    emitter = Emitter(
        {"service.name": "chaos"}, socket_path=str(tmp_path / "c.sock"), limits=LIMITS
    )
    dice = random.Random(seed)
    moods.collector.start()
    for number in range(3_000):
        severity = dice.choice((5, 9, 13, 17))
        emitter.emit("log", b'{"body":"%d"}' % number, severity)
        if dice.random() < 0.002:
            moods.die()
    moods.calm = True
    assert emitter.flush(30)
    moods.collector.stop()
    counters = emitter.counters()
    arrived = [int(json.loads(line)["body"]) for line in moods.collector.records]
    dropped = sum(counters.dropped.get("log", {}).values())
    assert counters.emitted == {"log": 3_000}
    assert counters.acked["log"] + dropped == 3_000
    assert len(arrived) == counters.acked["log"]
    assert arrived == sorted(set(arrived)), "each once, in order"
    emitter.close(0)
