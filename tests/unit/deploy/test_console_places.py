"""Consoles of networks: a token that only looks, and a name that stands for several parts."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.deploy.console.authorizer import Authorizer
from penstock.deploy.console.config import ConsoleConfig
from tests.support.console import (
    ACT,
    READ,
    FakeConsoleLog,
    FakePart,
    Names,
    a_stage,
    a_status,
    a_stream,
    ask,
    running_console,
    token_files,
)
from tests.support.waiting import wait_until

PAUSE = json.dumps({"action": "pause", "stream": "logs"})


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    return token_files(tmp_path)


def test_who_has_the_token_for_looking_looks_and_does_not_act(
    tmp_path: Path, tokens: dict[str, str]
) -> None:
    log, more = FakeConsoleLog([a_stream("logs", 3)]), dict[str, Any](tokens)
    with running_console(tmp_path, {}, log, read_without_token=False, **more) as console:
        codes = [ask(console, "/api/snapshot", token)[0] for token in ("", "x" * 24, READ, ACT)]
        assert codes == [401, 401, 200, 200]
        status, said = ask(console, "/api/actions", READ, PAUSE)
        assert (status, said["code"]) == (403, "LOOK_ONLY")
        assert log.modes == []
        assert ask(console, "/api/actions", ACT, PAUSE)[0] == 200
        assert log.modes == [("logs", True, None)]


def test_one_token_for_both_acts(tokens: dict[str, str]) -> None:
    both = tokens | {"read_token_file": tokens["token_file"]}
    door = Authorizer(ConsoleConfig.model_validate(both), "127.0.0.1:1")
    assert door.may_act(f"Bearer {ACT}")
    assert not door.may_only_look(f"Bearer {ACT}")


def test_without_any_token_nobody_could_look(tokens: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="nobody may look"):
        ConsoleConfig(read_without_token=False)
    reading = {"read_without_token": False, "read_token_file": tokens["read_token_file"]}
    door = Authorizer(ConsoleConfig.model_validate(reading), "127.0.0.1:1")
    assert (door.may_look(f"Bearer {READ}"), door.acts) == (True, False)


def test_each_address_of_a_name_is_a_part_as_long_as_it_is_there(tmp_path: Path) -> None:
    names = Names()
    part = FakePart(lambda: a_status("collector", "node-a", a_stage("source/otlp", 1)))
    parts = {"collector": part.url.replace("127.0.0.1", "collectors.test")}

    def seen() -> dict[str, str]:
        found = ask(console, "/api/snapshot", "")[1]["parts"]
        return {one["name"]: one["health"] for one in found}

    more: dict[str, Any] = {"each_address": ["collector"], "poll_interval_s": 0.2}
    with running_console(tmp_path, parts, names=names.often(), **more) as console:
        both = {"collector-127.0.0.1": "ready", "collector-127.0.0.2": "unreachable"}
        wait_until(lambda: seen() == both, what="the one that is away is shown, too")
        names.addresses = []
        wait_until(lambda: names.failed > 2)
        assert seen() == both, "who is known stays while names are not to be had"
        names.addresses = ["127.0.0.1"]
        wait_until(lambda: seen() == {"collector-127.0.0.1": "ready"})
    part.close()


@pytest.mark.parametrize("addresses", [["127.0.0.1", "::1"], ["::1", "127.0.0.1", "::2"]])
def test_a_host_with_addresses_of_both_kinds_is_one_part(
    tmp_path: Path, addresses: list[str]
) -> None:
    names = Names()
    names.addresses = addresses
    parts = {"collector": "http://collectors.test:1"}
    expected = {f"collector-{one}" for one in addresses if (":" in one) == (":" in addresses[0])}
    with running_console(
        tmp_path, parts, names=names.often(), each_address=["collector"]
    ) as console:

        def seen() -> set[str]:
            return {one["name"] for one in ask(console, "/api/snapshot", "")[1]["parts"]}

        wait_until(lambda: seen() != {"collector"})
        assert seen() == expected


def test_a_name_that_stands_for_nothing_yet_is_shown_with_the_reason(tmp_path: Path) -> None:
    names = Names()
    names.addresses = []
    parts = {"collector": "http://collectors.test:9295"}
    with running_console(
        tmp_path, parts, names=names.often(), each_address=["collector"]
    ) as console:

        def told() -> bool:
            [found] = ask(console, "/api/snapshot", "")[1]["parts"]
            return found["health"] == "unreachable" and "no such name" in found["reasons"][0]

        wait_until(told)


def test_only_a_part_that_there_is_has_addresses() -> None:
    with pytest.raises(ValidationError, match="there is no part 'collectors'"):
        ConsoleConfig(parts={"collector": "http://a:1"}, each_address=("collectors",))


@pytest.mark.parametrize("place", ["a..b:9295", "127.0.0.1:99999"])
def test_an_address_that_cannot_be_is_shown_and_ends_nothing(tmp_path: Path, place: str) -> None:
    parts = {"collector": f"http://{place}"}
    with running_console(tmp_path, parts, each_address=["collector"]) as console:

        def told() -> bool:
            [found] = ask(console, "/api/snapshot", "")[1]["parts"]
            reasons: list[str] = found["reasons"]
            return found["health"] == "unreachable" and "not asked" not in reasons[0]

        wait_until(told)
