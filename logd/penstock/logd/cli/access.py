"""`penstock logd acl ...`, `who-can` and `quotas ...`: who may do what, and how much of it."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from penstock.base.clock import SystemClock
from penstock.base.files import atomic_write
from penstock.logd.api.models import RulePage, Verdict
from penstock.logd.cli.output import echo_json, json_option, safe, table, tell
from penstock.logd.cli.server import asking, server_option
from penstock.logd.client import LogClient, calls
from penstock.logd.limits import ACL_RULES_PER_REQUEST_MAX
from penstock.logd.security.acl import (
    EVERYBODY,
    AclRule,
    Action,
    Effect,
    nats_configuration,
    nats_users,
)
from penstock.logd.security.api_keys import line_of, make_key
from penstock.logd.security.quotas import Quota
from penstock.service import ExitCode
from penstock.service.cli import IntRange, PenstockGroup

_ACTIONS = [str(action) for action in Action]
_EFFECTS = [str(effect) for effect in Effect]


@click.group(cls=PenstockGroup, epilog="Example: penstock logd acl ls")
def acl() -> None:
    """Show and change the rules of permissions.

    A principal is a name, group:NAME, or * for everybody. A resource is a stream (orders), streams
    whose names begin so (orders-*), subject:FILTER, or * for everything. What no rule allows is
    denied, once `auth.acl` is on, and a rule that denies counts more than any that allows.
    """


@acl.command("ls", epilog="Example: penstock logd acl ls --principal alice --json")
@click.option("--principal", help="Only the rules about this one.")
@server_option
@json_option("One JSON object a line.")
def list_rules(principal: str | None, server: str, as_json: bool) -> None:
    """List the rules."""
    with asking(server) as log:
        page, rules = _all(log)
    kept = [rule for rule in rules if principal in (None, rule.principal)]
    if as_json:
        for rule in kept:
            echo_json({"id": rule.id} | to_builtins(rule))
        return
    rows = [(r.id, str(r.effect), r.principal, str(r.action), r.resource) for r in kept]
    click.echo(table(("ID", "EFFECT", "PRINCIPAL", "ACTION", "RESOURCE"), rows))
    if not page.enabled:
        click.echo("they are not followed: auth.acl is off", err=True)
    if page.superusers:
        click.echo(f"superusers: {safe(', '.join(page.superusers))}", err=True)
    for grant in page.grants:
        click.echo(f"by the configuration: {safe(grant)}", err=True)


@acl.command(epilog="Example: penstock logd acl add allow alice publish,read 'subject:orders.>'")
@click.argument("effect", type=click.Choice(_EFFECTS))
@click.argument("principal")
@click.argument("actions")
@click.argument("resource")
@json_option()
@server_option
def add(
    *, effect: str, principal: str, actions: str, resource: str, as_json: bool, server: str
) -> None:
    """Allow or deny PRINCIPAL ACTIONS on RESOURCE; the same again changes nothing.

    ACTIONS is one or several of publish, read, create, delete, alter, cursor, admin, with commas
    between them.
    """
    rules = [
        AclRule(
            principal=principal, effect=Effect(effect), action=Action(action), resource=resource
        )
        for action in _actions(actions)
    ]
    with asking(server) as log:
        changed = log.ask(calls.put_acls(rules))
    if as_json:
        echo_json(
            {"rules": [{"id": one.id} | to_builtins(one) for one in rules], "changed": changed}
        )
        return
    for rule in rules:
        click.echo(f"{rule.id}  {safe(rule.text)}{'' if changed else '  (was there already)'}")


@acl.command(epilog="Example: penstock logd acl rm 3f1c0a9be27d")
@click.argument("ids", nargs=-1, required=True)
@json_option()
@server_option
def rm(ids: tuple[str, ...], as_json: bool, server: str) -> None:
    """Remove the rules with these IDS, all of them or none."""
    if len(ids) > ACL_RULES_PER_REQUEST_MAX:
        raise click.UsageError(f"at most {ACL_RULES_PER_REQUEST_MAX} at a time")
    with asking(server) as log:
        log.ask(calls.delete_acls(ids))
    tell(f"removed: {', '.join(ids)}", {"removed": ids}, as_json=as_json)


@acl.command("test", epilog="Example: penstock logd acl test read orders --principal alice")
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("resource")
@click.option("--principal", help="Default: the caller.")
@click.option("--group", "groups", multiple=True, help="That it is in; may be repeated.")
@server_option
@json_option()
def judge(
    action: str,
    resource: str,
    principal: str | None,
    groups: tuple[str, ...],
    server: str,
    as_json: bool,
) -> None:
    """Say whether a principal may do ACTION on RESOURCE, and by which rule; exit code 1 if not.

    While authorization is off everybody may; what the rules would say is printed, too.
    """
    if groups and principal is None:
        raise click.UsageError("--group needs --principal")
    call = calls.judge(action, resource, principal=principal, groups=groups)
    with asking(server) as log:
        verdict = log.ask(call)
    words = f"{'allowed' if verdict.allowed else 'denied'}: {verdict.reason}"
    facts = _facts(verdict)
    if not verdict.enabled:
        words = f"allowed: authorization is off (auth.acl); the rules would say: {words}"
        facts |= {"allowed": True, "by_rules": verdict.allowed}
    tell(words, facts, as_json=as_json)
    if verdict.enabled and not verdict.allowed:
        sys.exit(ExitCode.FAILURE)


@acl.command(epilog="Example: penstock logd acl nats > /etc/nats/authorization.conf")
@click.option(
    "--logd-user", default="logd", show_default=True, help="The user as which logd logs in."
)
@server_option
def nats(logd_user: str, server: str) -> None:
    """Print nats-server permissions that match the rules, for what is published past logd.

    Rules about streams become rules about the subjects that they store now: print it again when
    streams or rules have changed. Passwords are taken from nats-server's environment.
    """
    with asking(server) as log:
        page, rules = _all(log)
        streams = log.streams()
    stored = {
        one.name: [one.subject, *([f"{one.subject}.*"] if len(one.partitions) > 1 else [])]
        for one in streams
    }
    users = nats_users(rules, stored)
    groups = sorted({rule.principal for rule in rules if rule.principal.startswith("group:")})
    click.echo(f"# From the rules of logd at version {page.version}. Include it in nats-server's")
    click.echo("# configuration. Streams that are made later are not in it.")
    if groups:
        click.echo(f"# Not said here, for nats-server has no groups: {safe(', '.join(groups))}")
    click.echo(nats_configuration(users, logd_user=logd_user), nl=False)


@click.command("who-can", epilog="Example: penstock logd who-can read 'subject:orders.>'")
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("resource")
@click.option("--all", "denied", is_flag=True, help="Also list principals that may not.")
@server_option
@json_option("One JSON object a line.")
def who_can(action: str, resource: str, denied: bool, server: str, as_json: bool) -> None:
    """List the principals that may do ACTION on RESOURCE, and by which rule.

    A principal may also be in a group: the line of the group shows what a rule denies the group.
    """
    with asking(server) as log:
        found = log.ask(calls.who_can(action, resource))
    if any(not one.enabled for one in found):
        click.echo("authorization is off (auth.acl): everybody may; the rules would say:", err=True)
    kept = [one for one in found if one.allowed or denied]
    if as_json:
        for one in kept:
            echo_json(_facts(one))
        return
    rows = [
        (
            "everybody" if one.principal == EVERYBODY else one.principal,
            "allowed" if one.allowed else "denied",
            one.reason,
        )
        for one in kept
    ]
    click.echo(table(("PRINCIPAL", "VERDICT", "REASON"), rows))


@click.group(cls=PenstockGroup, epilog="Example: penstock logd quotas ls")
def quotas() -> None:
    """Show and change how much principals may use of each node."""


@quotas.command("ls", epilog="Example: penstock logd quotas ls --json")
@server_option
@json_option("One JSON object a line.")
def list_quotas(server: str, as_json: bool) -> None:
    """List the quotas; * is that of all principals without one."""
    with asking(server) as log:
        found = log.ask(calls.quotas())
    if as_json:
        for quota in found:
            echo_json(to_builtins(quota))
        return
    titles = ("principal", "bytes_in_per_s", "bytes_out_per_s", "requests_per_s", "streams")
    rows = [
        tuple("-" if value is None else value for value in to_builtins(quota).values())
        for quota in found
    ]
    click.echo(table([title.upper() for title in titles], rows))


@quotas.command("set", epilog="Example: penstock logd quotas set alice --bytes-out-per-s 10000000")
@click.argument("principal")
@click.option("--bytes-in-per-s", type=IntRange(min=1), help="Published over gRPC.")
@click.option("--bytes-out-per-s", type=IntRange(min=1), help="Fetched, and subscribed to.")
@click.option("--requests-per-s", type=IntRange(min=1), help="Requests and calls.")
@click.option("--streams", type=IntRange(min=0), help="That it created, at a time.")
@json_option()
@server_option
def set_quota(principal: str, as_json: bool, server: str, **limits: Any) -> None:
    """Set the quota of PRINCIPAL, a name, or * for all who have none; what is not given is free."""
    if not any(limit is not None for limit in limits.values()):
        raise click.UsageError("give it a limit, or remove it: penstock logd quotas rm")
    quota = Quota(principal=principal, **limits)
    with asking(server) as log:
        log.ask(calls.put_quota(quota))
    tell(f"quota of {principal} is set", to_builtins(quota), as_json=as_json)


@quotas.command("rm", epilog="Example: penstock logd quotas rm alice")
@click.argument("principal")
@json_option()
@server_option
def remove_quota(principal: str, as_json: bool, server: str) -> None:
    """Remove the quota of PRINCIPAL."""
    with asking(server) as log:
        log.ask(calls.delete_quota(principal))
    done = {"principal": principal, "removed": True}
    tell(f"quota of {principal} is removed", done, as_json=as_json)


def _facts(verdict: Verdict) -> dict[str, Any]:
    """A verdict as the commands print it: with the rule's id alone."""
    found: dict[str, Any] = to_builtins(verdict)
    return found | {"rule": None if verdict.rule is None else verdict.rule.id}


def _all(log: LogClient) -> tuple[RulePage, list[AclRule]]:
    """Every rule, as of one version."""
    page = log.ask(calls.acls())
    rules = list(page.rules)
    while page.more:
        page = log.ask(calls.acls(rules[-1].id))
        rules += page.rules
    return page, [one.rule() for one in rules]


def _actions(text: str) -> list[Action]:
    found = []
    for word in text.split(","):
        try:
            found.append(Action(word.strip()))
        except ValueError:
            message = f"{word!r}: one of {', '.join(_ACTIONS)}"
            raise click.BadParameter(message, param_hint="ACTIONS") from None
    return found


@click.group(
    cls=PenstockGroup, epilog="Example: penstock logd keys new billing >> /etc/penstock/keys"
)
def keys() -> None:
    """Make API keys."""


@keys.command(
    epilog="\b\nExample:\n  penstock logd keys new billing --save billing.key >> /etc/penstock/keys"
)
@click.argument("name")
@click.option("--days", type=IntRange(1, 3650), help="How long it is good; default: for ever.")
@click.option("--group", "groups", multiple=True, help="A group it belongs to; may be repeated.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the key into this new file, readable by you alone, instead of showing it.",
)
def new(name: str, days: int | None, groups: tuple[str, ...], save: Path | None) -> None:
    """Make an API key for NAME.

    The line for the file `auth.keys_file` goes to standard output; the key itself, which is shown
    this once, to standard error or a file for --token-file.
    """
    try:
        key = make_key(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    if any(not group or not group.isascii() or set(group) & set(", \t\n") for group in groups):
        raise click.BadParameter("a group is a word without commas", param_hint="--group")
    expires = None
    if days is not None:
        now = datetime.fromtimestamp(SystemClock().unix_ns() // 10**9, UTC)
        expires = now + timedelta(days=days)
    if save is None:
        click.echo(f"the key of {name}, which nobody can show again:\n{key}", err=True)
    else:
        _save(key, save)
    if sys.stdout.isatty():
        click.echo("the line for auth.keys_file:", err=True)
    click.echo(line_of(key, expires=expires, groups=groups))


def _save(key: str, path: Path) -> None:
    try:
        atomic_write(path, f"{key}\n", mode=0o600, exclusive=True)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--save") from None
