"""`--json`: every verb takes it, and says what was done in one document."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import click
import orjson
import pytest
from click.testing import CliRunner, Result

from penstock.logd.api.models import Elected
from penstock.logd.cli import cli
from penstock.logd.cli.server import Clients
from penstock.logd.errors import RefusedError
from penstock.logd.security.acl import AclRule, Action, Effect
from tests.support.cli_commands import all_commands

WITHOUT = {
    ("acl", "nats"): "what it prints is a piece of nats-server's configuration",
    ("keys", "new"): "what it prints is a line of auth.keys_file, to be appended with >>",
}
"""Verbs whose output is for another program already, in that one's language."""


def verbs(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in all_commands(group):
        if isinstance(command, click.Group):
            yield from verbs(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_verb_takes_json_but_for_those_with_a_reason() -> None:
    taking = {
        path
        for path, command in verbs(cli)
        if any("--json" in one.opts and one.name == "as_json" for one in command.params)
    }
    every = {path for path, _ in verbs(cli)}
    assert len(every) > 40
    assert every - taking == WITHOUT.keys()


class Log:
    """Does whatever it is asked, or refuses it."""

    def __init__(self) -> None:
        self.refused: RefusedError | None = None
        self.answers: dict[str, Any] = {
            "create_stream": SimpleNamespace(
                name="logs", subject="t.>", incarnation="i-1", partitions=[None, None]
            ),
            "match": ["logs", "other"],
            "elect_and_lose_records": Elected(
                leader="n2", end_offset=7, known_end=9, unclean_elections=1
            ),
            "step_down": "n2",
            "rebalance": 3,
            "cursor": SimpleNamespace(delete=lambda: True),
            "ask": True,
            "cluster": SimpleNamespace(cluster="demo", controller="n1", nodes=[]),
            "streams": [],
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closed."""

    def __getattr__(self, name: str) -> Any:
        def answer(*_: Any, **__: Any) -> Any:
            if self.refused is not None:
                raise self.refused
            return self.answers.get(name)

        return answer


@pytest.fixture
def log() -> Log:
    return Log()


def run(log: Log, words: str) -> Result:
    return CliRunner().invoke(cli, words.split(), obj=Clients(log=lambda *_, **__: log))


def rule(action: Action) -> dict[str, Any]:
    made = AclRule(principal="al", effect=Effect.ALLOW, action=action, resource="logs")
    facts = {"principal": "al", "effect": "allow", "action": str(action), "resource": "logs"}
    return {"id": made.id} | facts


DONE: dict[str, dict[str, Any]] = {
    "streams create logs --subject t.>": {
        "stream": "logs", "subject": "t.>", "incarnation": "i-1", "partitions": 2,
    },
    "streams alter logs --min-isr 2 --retention-age-s 60 --unset retention-bytes": {
        "stream": "logs", "changed": {"min_isr": 2, "retention": {"age_s": 60, "bytes": None}},
    },
    "streams pause logs": {"stream": "logs", "paused": True, "held": False},
    "streams pause logs --hold": {"stream": "logs", "paused": True, "held": True},
    "streams resume logs": {"stream": "logs", "paused": False, "held": False},
    "streams readonly logs": {"stream": "logs", "read_only": True},
    "streams writable logs": {"stream": "logs", "read_only": False},
    "streams move logs --to n1,n2 --no-wait": {
        "stream": "logs", "partition": 0, "replicas": ["n1", "n2"], "done": False,
    },
    "streams observers logs --on n4": {"stream": "logs", "partition": 0, "observers": ["n4"]},
    "streams observers logs --none": {"stream": "logs", "partition": 0, "observers": []},
    "streams elect logs --lose-records": {
        "stream": "logs", "partition": 0, "leader": "n2", "lost_max": 2, "end_offset": 7,
        "known_end": 9, "unclean_elections": 1,
    },
    "streams open logs --node n1": {"stream": "logs", "node": "n1", "open": True},
    "streams delete logs --yes": {"stream": "logs", "deleted": True},
    "match t.a": {"subject": "t.a", "streams": ["logs", "other"]},
    "cluster drain n1 --no-wait": {"node": "n1", "done": False},
    "cluster undrain n1": {"node": "n1", "active": True},
    "cluster remove n1 --yes": {"node": "n1", "removed": True},
    "cluster rebalance --no-wait": {"moves": 3, "done": False},
    "cluster wait": {"in_sync": True},
    "cluster step-down": {"controller": "n2"},
    "cursors delete billing logs": {
        "consumer": "billing", "stream": "logs", "partition": 0, "deleted": True,
    },
    "acl add allow al publish,read logs": {
        "rules": [rule(Action.PUBLISH), rule(Action.READ)], "changed": True,
    },
    "acl rm a1 b2": {"removed": ["a1", "b2"]},
    "quotas set al --requests-per-s 5": {
        "principal": "al", "bytes_in_per_s": None, "bytes_out_per_s": None, "requests_per_s": 5,
        "streams": None,
    },
    "quotas rm al": {"principal": "al", "removed": True},
}  # fmt: skip


@pytest.mark.parametrize("words", DONE)
def test_what_was_done_is_one_document(log: Log, words: str) -> None:
    done = run(log, f"{words} --json")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert done.stdout.count("\n") == 1
    assert DONE[words] == orjson.loads(done.stdout)
    for_people = run(log, words)
    assert (for_people.exit_code, for_people.stderr) == (0, "")
    assert "{" not in for_people.stdout


@pytest.mark.parametrize("words", [words for words in DONE if words != "cluster wait"])
def test_a_refusal_is_told_as_without_it_and_nothing_is_said_to_be_done(
    log: Log, words: str
) -> None:
    log.refused = RefusedError("READ_ONLY", "it is so")
    done, for_people = run(log, f"{words} --json"), run(log, words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "it is so (READ_ONLY)" in done.stderr
    assert done.stderr == for_people.stderr


def test_no_stream_is_an_empty_list_and_exit_code_1(
    log: Log,
) -> None:
    log.answers["match"] = []
    done = run(log, "match t.a --json")
    assert done.exit_code == 1
    assert orjson.loads(done.stdout) == {"subject": "t.a", "streams": []}
    assert "no stream stores t.a" in done.stderr


def test_what_is_not_in_sync_in_time_says_nothing_on_standard_output(
    log: Log,
) -> None:
    away = SimpleNamespace(node="n2", is_member=True, live=False)
    log.answers["cluster"] = SimpleNamespace(cluster="demo", controller="n1", nodes=[away])
    done = run(log, "cluster wait --seconds 0 --json")
    assert (done.exit_code, done.stdout) == (69, "")
    assert "node n2 is away" in done.stderr
