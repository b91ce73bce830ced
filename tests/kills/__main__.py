"""Kill a router's job many times: `make router-kills RUNS=50`; SEED=n draws the same victims."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.kills.assault import STREAMS, Assault
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server


def say(text: str) -> None:
    """Tell at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    given = parser.parse_args()
    say(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as name:
        directory = Path(name)
        with (
            running_nats_server(directory / "nats") as nats_url,
            Logd(directory / "logd", nats_url, STREAMS) as logd,
        ):
            assault = Assault(directory, nats_url, logd, given.seed)
            try:
                assault.begin()
                for number in range(given.runs):
                    victim = assault.strike()
                    say(f"{number + 1}: {victim}, {assault.published} published")
                wrong = assault.end()
            finally:
                assault.close()
    kills = ", ".join(f"{victim} {count}" for victim, count in sorted(assault.killed.items()))
    say(f"{given.runs} kills ({kills}), {assault.published} records, seed {given.seed}")
    say("\n".join(wrong) or "every sink has each record exactly once")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
