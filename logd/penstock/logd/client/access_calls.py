"""Calls about rules and quotas, as `penstock.logd.client.calls`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.logd.client.calls import Call
from penstock.logd.core.acl import AclRule, Action, Effect
from penstock.logd.core.quotas import Quota
from penstock.logd.fetch.wire import Document

_CHANGE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPage:
    """Some of the rules.

    Attributes:
        version: Of all rules and quotas; a change may say that it is based on it.
        enabled: Whether they are followed.
        superusers: Who may everything without any, by the configuration of the node that answers.
        grants: What that configuration allows besides, in words; empty of an older logd.
        more: Whether there are more after the last of these.
    """

    version: int
    enabled: bool
    superusers: tuple[str, ...]
    grants: tuple[str, ...]
    rules: tuple[AclRule, ...]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the rules say of somebody.

    Attributes:
        principal: Whom; empty: the caller itself.
        allowed: What the rules say.
        rule: The id of the rule that decided; None: none did.
        enabled: Whether the rules are in force; if not, everybody may do everything.
    """

    principal: str
    allowed: bool
    reason: str
    rule: str | None
    enabled: bool = True


def acls(after: str | None = None) -> Call[AclPage]:
    """Rules in their order, those after one."""
    request: Document = {"api": "acls"} | ({} if after is None else {"after": after})

    def read(header: Document, _: memoryview) -> AclPage:
        return AclPage(
            version=header["version"],
            enabled=header["enabled"],
            superusers=tuple(header["superusers"]),
            grants=tuple(header.get("grants", ())),
            rules=tuple(_rule(one) for one in header["rules"]),
            more=header["more"],
        )

    return Call(request, read)


def put_acls(rules: Sequence[AclRule], based_on: int | None = None) -> Call[bool]:
    """Add rules; whether any of them is new."""
    request = {"api": "put_acls", "rules": [asdict(rule) for rule in rules], "based_on": based_on}
    return _change(request)


def delete_acls(ids: Sequence[str], based_on: int | None = None) -> Call[bool]:
    """Remove rules, all of them or none."""
    return _change({"api": "delete_acls", "rules": list(ids), "based_on": based_on})


def judge(
    action: str, resource: str, *, principal: str | None = None, groups: Sequence[str] = ()
) -> Call[Verdict]:
    """What the rules say of somebody, or of the caller."""
    request: Document = {"api": "test_acl", "action": action, "resource": resource}
    if principal is not None:
        request |= {"principal": principal, "groups": list(groups)}
    return Call(request, lambda header, _: _verdict(principal or "", header))


def who_can(action: str, resource: str) -> Call[list[Verdict]]:
    """What the rules say of everybody they name."""
    request = {"api": "who_can", "action": action, "resource": resource}

    def read(header: Document, _: memoryview) -> list[Verdict]:
        enabled = header.get("enabled", True)
        return [
            _verdict(one["principal"], one | {"enabled": enabled}) for one in header["principals"]
        ]

    return Call(request, read)


def quotas() -> Call[list[Quota]]:
    """All of them."""
    return Call({"api": "quotas"}, lambda header, _: [Quota(**one) for one in header["quotas"]])


def put_quota(quota: Quota) -> Call[bool]:
    """Set a quota, in place of what there is."""
    return _change({"api": "put_quota", "quota": asdict(quota)})


def delete_quota(principal: str) -> Call[bool]:
    """Remove a quota."""
    return _change({"api": "delete_quota", "principal": principal})


def _change(request: Document) -> Call[bool]:
    kept = {key: value for key, value in request.items() if value is not None}
    return Call(kept, lambda header, _: bool(header["changed"]), wait_s=_CHANGE_S)


def _rule(document: dict[str, Any]) -> AclRule:
    return AclRule(
        principal=document["principal"],
        effect=Effect(document["effect"]),
        action=Action(document["action"]),
        resource=document["resource"],
    )


def _verdict(principal: str, document: dict[str, Any]) -> Verdict:
    rule = document["rule"]
    return Verdict(
        principal=principal,
        allowed=document["allowed"],
        reason=document["reason"],
        rule=None if rule is None else rule["id"],
        enabled=document.get("enabled", True),
    )
