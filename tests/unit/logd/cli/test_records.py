"""`tail` and `fetch` of several partitions, and the names of streams that shells are offered."""

from collections.abc import Iterable
from typing import Any, Self

import orjson
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from penstock.logd.cli import cli
from penstock.logd.cli.server import Clients
from penstock.logd.format.batch import Record
from tests.support.fake_log import FakeLog
from tests.support.processes import free_port


@pytest.fixture
def log() -> FakeLog:
    made = FakeLog()
    for number in range(30):  # partition 2 has every third
        record = Record("t.a", b"%d" % number, number * 10**9, None, ())
        made.add("three", [record], per_frame=1, partition=number % 3)
    made.add("one", [Record("t.a", b"x", 10**9, None, ())], per_frame=1)
    return made


def shown(log: FakeLog, *words: str) -> list[tuple[int | None, int, str]]:
    done = CliRunner().invoke(cli, [*words, "--json"], obj=log.clients())
    assert done.exit_code == 0, done.output
    found = [orjson.loads(line) for line in done.stdout.splitlines()]
    return [(one.get("partition"), one["offset"], one["value"]) for one in found]


def everything() -> list[tuple[int | None, int, str]]:
    return [(number % 3, number // 3, str(number)) for number in range(30)]


@pytest.mark.parametrize("words", [["tail", "three", "--from", "earliest"], ["fetch", "three"]])
def test_records_of_all_partitions_come_by_their_times(log: FakeLog, words: list[str]) -> None:
    assert shown(log, *words) == everything()
    assert shown(log, *words, "--partition", "2", "--partition", "0") == [
        one for one in everything() if one[0] != 1
    ]
    only = [(None, offset, value) for number, offset, value in everything() if number == 1]
    assert shown(log, *words, "--partition", "1") == only
    words[1] = "one"
    assert shown(log, *words) == [(None, 0, "x")]


def telemetry(**fields: Any) -> bytes:
    resource = {"service.name": fields.pop("service", "shop")}
    return orjson.dumps({"schema": "x/1.0", "kind": "log", "resource": resource, **fields})


SAID = (
    telemetry(
        severity_number=13, severity_text="WARN", body="low\nstock", context={"user.id": "u-1"},
        attributes={"left": 3, "note": "a b", "process.pid": 7, "exception.stacktrace": "…"},
    ),
    telemetry(kind="span", name="GET /", time_unix_nano=0, end_time_unix_nano=1_500_000,
              status_code="ERROR", service="web"),
    telemetry(kind="metric", name="jobs", value=2, unit="{job}"),
    telemetry(kind="event", event_name="shop.placed"),
    telemetry(kind="audit", actor={"type": "user", "id": "u"}, action="update",
              target={"type": "door", "id": 1}, outcome="success"),
    b'{"kind":"log"}',
    b"\xffplain",
)  # fmt: skip
LINES = (
    'WARN   shop  low\\nstock  user.id=u-1 left=3 note="a b"',
    "ERROR  web  GET / 1.5 ms",
    "METRIC  shop  jobs 2 {job}",
    "EVENT  shop  shop.placed",
    "AUDIT  shop  user:u update door:1 success",
    't.a  {"kind":"log"}',
    "t.a  \\xffplain",
)


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        ((), range(7)),
        (("--level", "warn"), (0, 1)),
        (("--level", "ERROR"), (1,)),
        (("--service", "shop"), (0, 2, 3, 4)),
        (("--service", "shop", "--level", "info"), (0,)),
        (("--grep", "left=[0-9]|success$"), (0, 4)),
        (("--grep", "plain"), (6,)),
    ],
)
def test_a_record_is_one_line_and_lines_are_chosen_by_what_they_say(
    log: FakeLog, words: tuple[str, ...], offsets: Iterable[int]
) -> None:
    for payload in SAID:
        log.add("said", [Record("t.a", payload, 10**9, None, ())], per_frame=1)
    done = CliRunner().invoke(
        cli, ["tail", "said", "--from", "earliest", *words], obj=log.clients()
    )
    assert done.stdout.splitlines() == [
        f"{offset}  1970-01-01T00:00:01.000000Z  {LINES[offset]}" for offset in offsets
    ]


def test_a_pattern_that_is_none_is_a_usage_error(log: FakeLog) -> None:
    done = CliRunner().invoke(cli, ["tail", "one", "--grep", "("], obj=log.clients())
    assert done.exit_code == 64
    assert "'(' is no regular expression" in done.output


def test_without_a_position_each_partition_shows_its_last_ten(log: FakeLog) -> None:
    for number in range(30, 60):
        record = Record("t.a", b"%d" % number, number * 10**9, None, ())
        log.add("three", [record], per_frame=1, partition=number % 3)
    assert [value for _, _, value in shown(log, "tail", "three")] == [str(n) for n in range(30, 60)]


def test_following_several_waits_for_one_at_a_time_and_misses_none(log: FakeLog) -> None:
    log.waits = 12
    found = shown(log, "tail", "three", "--from", "earliest", "--follow")
    assert sorted(found, key=lambda one: int(one[2])) == everything()
    assert log.waits == -1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tail three --from 3", "--from 3 is an offset, and 3 partitions are read"),
        ("fetch three --to 3", "--to 3 is an offset, and 3 partitions are read"),
        ("fetch three --format arrow", "an Arrow stream holds one partition"),
    ],
)
def test_what_is_about_one_partition_is_refused_for_several(
    log: FakeLog, words: str, said: str
) -> None:
    done = CliRunner().invoke(cli, words.split(), obj=log.clients())
    assert (done.exit_code, said in done.stderr) == (64, True), done.output
    assert done.stdout == ""


def test_text_names_the_partition_where_there_are_several(log: FakeLog) -> None:
    done = CliRunner().invoke(
        cli, ["tail", "three", "--partition", "0", "--partition", "1"], obj=log.clients()
    )
    assert done.stdout.splitlines()[1].startswith("1/0  1970-01-01T00:00:01.000000Z  t.a  1")
    done = CliRunner().invoke(
        cli, ["tail", "three", "--partition", "1", "--pretty"], obj=log.clients()
    )
    assert done.stdout.startswith("offset 0  ")


def complete(words: list[str], incomplete: str, clients: Clients | None = None) -> list[str]:
    found = ShellComplete(cli, {"obj": clients}, "logd", "_X").get_completions(words, incomplete)
    return [item.value for item in found]


def test_a_shell_is_offered_streams_and_nothing_where_logd_says_nothing() -> None:
    asked: list[str] = []

    class Client:
        def __init__(self, server: str, **_: object) -> None:
            asked.append(server)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Closed."""

        def streams(self) -> list["Client"]:
            return [self]

        name = "orders"

    clients = Clients(log=Client)
    assert complete(["tail", "--server", "there:1"], "or", clients) == ["orders"]
    assert complete(["streams", "info"], "x", clients) == []
    assert complete(["streams", "create"], "or", clients) == []  # a new name is none that there is
    assert asked == ["there:1", "127.0.0.1:9293"]
    nobody = f"127.0.0.1:{free_port()}"
    assert complete(["tail", "--server", nobody], "") == []
