"""Requests about rules and quotas; `penstock.logd.api.protocol` says what they look like."""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from penstock.logd.api.middleware import Handler
from penstock.logd.api.protocol import Document
from penstock.logd.api.stream_options import parse
from penstock.logd.errors import RefusedError
from penstock.logd.limits import ACL_RULES_PER_ANSWER_MAX, ACL_RULES_PER_REQUEST_MAX
from penstock.logd.metadata.access import (
    AccessCommand,
    AccessTable,
    DeleteAcl,
    DeleteQuota,
    PutAcl,
    PutQuota,
)
from penstock.logd.security.acl import AclRule, Action, Decision, Effect
from penstock.logd.security.authorizer import Access, Authorizer
from penstock.logd.security.principal import Principal
from penstock.logd.security.quotas import Quota


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    api: str
    id: int = 0


class _Listing(_Request):
    after: str | None = None


class _Change(_Request):
    based_on: Annotated[int, Field(ge=0)] | None = None


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    effect: Annotated[Effect, Field(strict=False)]
    principal: str
    action: Annotated[Action, Field(strict=False)]
    resource: str


class _PutAcls(_Change):
    rules: Annotated[list[_Rule], Field(min_length=1, max_length=ACL_RULES_PER_REQUEST_MAX)]


class _DeleteAcls(_Change):
    rules: Annotated[list[str], Field(min_length=1, max_length=ACL_RULES_PER_REQUEST_MAX)]


class _Quota(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    principal: str
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    requests_per_s: int | None = None
    streams: int | None = None


class _PutQuota(_Change):
    quota: _Quota


class _DeleteQuota(_Change):
    principal: str


class _WhoCan(_Request):
    action: Annotated[Action, Field(strict=False)]
    resource: str


class _Test(_WhoCan):
    principal: str | None = None
    groups: Annotated[list[str], Field(max_length=256)] = []


class AccessApi:
    """Answers whoever administers rules and quotas.

    Args:
        access: Where they are kept.
        authorizer: Says what they come to.
    """

    def __init__(self, access: Access, authorizer: Authorizer) -> None:
        self._access = access
        self._authorizer = authorizer

    def handlers(self) -> dict[str, Handler]:
        """What answers which request."""
        return {
            "acls": self._list,
            "put_acls": self._put,
            "delete_acls": self._delete,
            "test_acl": self._test,
            "who_can": self._who_can,
            "quotas": self._quotas,
            "put_quota": self._put_quota,
            "delete_quota": self._delete_quota,
        }

    async def _list(self, document: Document, _: Principal) -> Document:
        after = parse(_Listing, document).after
        table = self._access.table
        rules = sorted(table.rules.values())
        first = 0
        if after is not None:
            if after not in table.rules:
                message = f"rule {after[:80]!r} is no more: list them from the beginning"
                raise RefusedError("UNKNOWN_RULE", message)
            first = rules.index(table.rules[after]) + 1
        page = rules[first : first + ACL_RULES_PER_ANSWER_MAX]
        return {
            "version": table.version,
            "enabled": self._authorizer.enabled,
            "superusers": sorted(self._authorizer.acl.superusers),
            "grants": [rule.text for rule in self._authorizer.acl.grants],
            "rules": [_rule(rule) for rule in page],
            "more": first + len(page) < len(rules),
        }

    async def _put(self, document: Document, _: Principal) -> Document:
        request = parse(_PutAcls, document)
        rules = tuple(AclRule(**rule.model_dump()) for rule in request.rules)
        answer = await self._change(PutAcl(rules=rules, based_on=request.based_on))
        return answer | {"rules": [_rule(rule) for rule in rules]}

    async def _delete(self, document: Document, _: Principal) -> Document:
        request = parse(_DeleteAcls, document)
        command = DeleteAcl(rules=tuple(request.rules), based_on=request.based_on)
        return await self._change(command)

    async def _test(self, document: Document, caller: Principal) -> Document:
        request = parse(_Test, document)
        target = self._authorizer.resource(request.resource)
        if request.principal is None:
            decision = self._authorizer.decide(caller, request.action, target)
            return _decision(decision) | {"enabled": self._authorizer.enabled}
        groups = frozenset(request.groups)
        decision = self._authorizer.acl.decide(request.principal, groups, request.action, target)
        return _decision(decision) | {"enabled": self._authorizer.enabled}

    async def _who_can(self, document: Document, _: Principal) -> Document:
        request = parse(_WhoCan, document)
        target = self._authorizer.resource(request.resource)
        found = self._authorizer.acl.who_can(request.action, target)
        principals = [{"principal": one} | _decision(decision) for one, decision in found]
        return {"enabled": self._authorizer.enabled, "principals": principals}

    async def _quotas(self, document: Document, _: Principal) -> Document:
        parse(_Request, document)
        table = self._access.table
        quotas = [asdict(quota) for _, quota in sorted(table.quotas.items())]
        return {"version": table.version, "quotas": quotas}

    async def _put_quota(self, document: Document, _: Principal) -> Document:
        request = parse(_PutQuota, document)
        quota = Quota(**request.quota.model_dump())
        return await self._change(PutQuota(quota=quota, based_on=request.based_on))

    async def _delete_quota(self, document: Document, _: Principal) -> Document:
        request = parse(_DeleteQuota, document)
        command = DeleteQuota(principal=request.principal, based_on=request.based_on)
        return await self._change(command)

    async def _change(self, command: AccessCommand) -> Document:
        changed = await self._access.change(command)
        table: AccessTable = self._access.table
        return {"changed": changed, "version": table.version}


def _rule(rule: AclRule) -> Document:
    return {"id": rule.id} | asdict(rule)


def _decision(decision: Decision) -> Document:
    found: dict[str, Any] = {"allowed": decision.allowed, "reason": decision.reason}
    kept = None if decision.granted else decision.rule
    return found | {"rule": None if kept is None else _rule(kept)}
