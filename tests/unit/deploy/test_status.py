"""What `penstock status` prints: one screen, also with hundreds of streams."""

import io
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from penstock.base.errors import ExitCode
from penstock.deploy.cli import cli
from penstock.deploy.status import (
    PARTITIONS_SHOWN,
    STAGES_SHOWN,
    Statuses,
    print_cluster,
    print_parts,
    shortened,
)
from tests.support.processes import free_port


def stage(name: str, *, received: int = 0, errors: int = 0) -> dict[str, Any]:
    return {"name": name, "received": received, "sent": 0, "lag": 1, "errors": errors}


def logd(stages: list[dict[str, Any]]) -> Statuses:
    return {"logd": {"health": "ready", "reasons": [], "stages": stages}}


def partition(number: int, *, isr: tuple[str, ...] = ("a", "b"), leader: str | None = "a") -> Any:
    return {
        "stream": f"s{number}", "partition": 0, "leader": leader, "isr": list(isr),
        "replicas": ["a", "b"],
    }  # fmt: skip


def printed(statuses: Statuses, *, everything: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    print_parts(statuses, everything=everything, console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_hundreds_of_streams_fit_on_one_screen_and_all_are_there_when_asked_for() -> None:
    stages = [stage(f"stream/s{number}", received=number) for number in range(440)]
    lines = printed(logd(stages))
    assert len(lines) == 1 + STAGES_SHOWN
    assert "435 more (--all)" in lines[-1]
    assert len(printed(logd(stages), everything=True)) == 441


def test_the_unwell_are_shown_before_the_busiest_in_the_order_of_the_part() -> None:
    stages = [stage(f"s{number}", received=1000 + number) for number in range(20)]
    stages[3] = stage("quiet", errors=2)
    names = [one["name"] for one in shortened(stages)]
    assert names == ["quiet", "s16", "s17", "s18", "s19", "15 more (--all)"]
    assert shortened(stages)[-1]["received"] == sum(one["received"] for one in stages[:16])


def test_few_stages_are_all_there() -> None:
    stages = [stage(f"s{number}") for number in range(STAGES_SHOWN)]
    assert shortened(stages) == stages


def test_what_applications_dropped_themselves_is_told() -> None:
    account = {"dropped_queue_full": 67_000, "dropped_too_large": 55}
    status = {
        "health": "ready", "reasons": [], "stages": [],
        "info": {
            "reconciliation": {"unix": {"received": 1}},
            "apps": {"unix": {"senders": {}, "ended": {}, "unreported": account}},
        },
    }  # fmt: skip
    status["component"] = "collector"
    (line,) = [line for line in printed({"collector": status}) if "applications" in line]
    assert "collector: applications lost records before they were sent" in line
    assert "67,000 dropped (queue_full), 55 dropped (too_large)" in line
    account.clear()
    assert not any("applications" in line for line in printed({"collector": status}))


def test_of_hundreds_of_partitions_those_that_are_unwell_are_shown_first() -> None:
    partitions = [partition(number) for number in range(440)]
    partitions[300] = partition(300, isr=("a",))
    partitions[301] = partition(301, leader=None)
    cluster = {"controller": "a", "nodes": [], "partitions": partitions}
    console = Console(file=io.StringIO(), width=120)
    print_cluster(cluster, console=console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    rows = [line for line in text.splitlines() if line.startswith("s")]
    assert [row.split()[0] for row in rows[1:3]] == ["s300", "s301"]
    assert len(rows) == 1 + PARTITIONS_SHOWN
    assert "440 partitions, 2 without a leader or out of sync" in text


@pytest.mark.parametrize("url", ["foo", "127.0.0.1:9298", "http://", "http://h:port", "http://[h"])
@pytest.mark.parametrize("command", ["status", "account", "trace --service shop"])
def test_an_address_that_is_none_is_named(command: str, url: str) -> None:
    result = CliRunner().invoke(cli, [*command.split(), "--url", url])
    assert result.exit_code == ExitCode.USAGE, result.output
    assert f"{url!r} is not http://HOST:PORT" in result.output


def test_a_part_that_is_silent_gives_no_answer_and_may_still_run() -> None:
    statuses: Statuses = {**logd([]), "router": None}
    assert printed(statuses)[-1].split() == ["router", "no", "answer"]


def test_an_address_where_nothing_answers_is_not_mended_by_an_up() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = CliRunner().invoke(cli, ["status", "--url", url])
    assert done.exit_code == ExitCode.UNAVAILABLE
    assert "fix: start that part, or name its admin endpoint with --url" in done.stderr
