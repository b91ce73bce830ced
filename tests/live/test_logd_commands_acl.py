"""The commands about rules and quotas, on a real logd."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.logd.cli.main import cli
from tests.support.callers import Callers
from tests.support.logd import Logd
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

STREAMS = [{"name": "orders", "subject": "orders.>"}]


def test_rules_and_quotas_are_changed_and_shown(tmp_path: Path) -> None:
    callers = Callers(tmp_path, alice=())
    for name, key in callers.keys.items():
        (tmp_path / name).write_text(key)
    grant = {"principal": "bob", "actions": ["publish"], "resources": ["orders"]}
    options: dict[str, Any] = {"auth": callers.auth(grants=[grant])}
    with (
        nats_server(tmp_path / "nats") as server,
        Logd(tmp_path / "logd", server.url, STREAMS, **options) as logd,
    ):

        def run(who: str, *arguments: str) -> Result:
            access = ["--server", logd.fetch, "--token-file", str(tmp_path / who)]
            return CliRunner().invoke(cli, [*arguments, *access])

        refused = run("alice", "acl", "add", "allow", "alice", "admin", "*")
        assert refused.exit_code != 0
        assert "PERMISSION_DENIED" in f"{refused.output}{refused.exception}"
        added = run("root", "acl", "add", "allow", "alice", "read,cursor", "subject:orders.eu.>")
        assert added.exit_code == 0, added.output
        rows = [json.loads(row) for row in run("root", "acl", "ls", "--json").stdout.splitlines()]
        assert [(row["action"], row["resource"]) for row in rows] == [
            ("cursor", "subject:orders.eu.>"),
            ("read", "subject:orders.eu.>"),
        ]
        listed = run("root", "acl", "ls").stderr
        assert "superusers: root\nby the configuration: allow bob publish orders" in listed
        bobs = run("root", "acl", "test", "publish", "orders", "--principal", "bob")
        assert (bobs.exit_code, "granted by the configuration" in bobs.stdout) == (0, True)
        whole = run("alice", "acl", "test", "read", "orders")
        assert (whole.exit_code, whole.stdout) == (1, "denied: no rule allows it\n")
        part = run("root", "acl", "test", "read", "subject:orders.eu.*", "--principal", "alice")
        assert (part.exit_code, part.stdout[:8]) == (0, "allowed:")
        who = run("root", "who-can", "read", "subject:orders.eu.fr", "--json")
        can = [json.loads(row)["principal"] for row in who.stdout.splitlines()]
        assert can == ["alice", "root"]
        assert run("root", "acl", "rm", *(row["id"] for row in rows)).exit_code == 0
        assert run("root", "acl", "ls", "--json").stdout == ""
        bad = run("root", "acl", "add", "allow", "alice", "create", "orders")
        assert "allow create on subject:FILTER" in f"{bad.output}{bad.exception}"

        assert run("root", "quotas", "set", "alice", "--requests-per-s", "5").exit_code == 0
        (quota,) = run("root", "quotas", "ls", "--json").stdout.splitlines()
        assert json.loads(quota)["requests_per_s"] == 5
        assert run("root", "quotas", "rm", "alice").exit_code == 0
        assert run("root", "quotas", "rm", "alice").exit_code != 0
        denied = run("alice", "tail", "__activity")
        assert denied.exit_code != 0

        def kinds() -> set[str]:
            shown = run("root", "tail", "__activity", "--json").stdout.splitlines()
            return {json.loads(json.loads(row)["value"])["kind"] for row in shown}

        recorded = {"access.denied", "acl.add", "acl.remove", "quota.set"}
        wait_until(lambda: recorded <= kinds(), what="the activities are in their stream")
