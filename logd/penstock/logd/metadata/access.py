"""Rules and quotas, and what commands do to them.

`version` is the number of the command that last changed anything here. A command may say which one
it was based on; if there is another by then, it is refused.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from penstock.logd.errors import RefusedError
from penstock.logd.limits import ACL_RULES_MAX, QUOTAS_MAX
from penstock.logd.security.acl import AclRule, check_rule
from penstock.logd.security.quotas import Quota, check_quota, quota_of


class PutAcl(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add rules; those that are there already stay as they are."""

    rules: tuple[AclRule, ...]
    based_on: int | None = None


class DeleteAcl(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Remove the rules with these ids, all of them or none."""

    rules: tuple[str, ...]
    based_on: int | None = None


class PutQuota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set a principal's quota, in place of the one it has."""

    quota: Quota
    based_on: int | None = None


class DeleteQuota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Remove a principal's quota."""

    principal: str
    based_on: int | None = None


AccessCommand = PutAcl | DeleteAcl | PutQuota | DeleteQuota


class AccessTable(Struct):
    """Rules by id and quotas by principal. Changed by `apply_access` only."""

    version: int = 0
    rules: dict[str, AclRule] = msgspec.field(default_factory=dict)
    quotas: dict[str, Quota] = msgspec.field(default_factory=dict)

    def max_streams(self, principal: str) -> int | None:
        """Return how many streams a principal may create; None: unlimited."""
        quota = quota_of(self.quotas, principal) if principal else None
        return None if quota is None else quota.streams


class AccessRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table's persistent form."""

    version: int = 0
    rules: tuple[AclRule, ...] = ()
    quotas: tuple[Quota, ...] = ()


NO_ACCESS: Final = AccessRecord()


def record_of(table: AccessTable) -> AccessRecord:
    """Return the record to persist; equal for equal rules and quotas."""
    return AccessRecord(
        version=table.version,
        rules=tuple(sorted(table.rules.values())),
        quotas=tuple(quota for _, quota in sorted(table.quotas.items())),
    )


def table_of(record: AccessRecord) -> AccessTable:
    """Return the table of a persisted record."""
    return AccessTable(
        record.version,
        {rule.id: rule for rule in record.rules},
        {quota.principal: quota for quota in record.quotas},
    )


def apply_access(table: AccessTable, number: int, command: AccessCommand) -> bool:
    """Apply a command; whether there was anything to change.

    Args:
        table: It is changed, unless the command is refused.
        number: Number of the command, above that of every earlier one.
        command: The command.

    Raises:
        RefusedError: `STALE_VERSION`, `BAD_RULE`, `BAD_QUOTA`, `UNKNOWN_RULE`, `UNKNOWN_QUOTA`,
            `TOO_MANY_RULES`, `TOO_MANY_QUOTAS`.
    """
    if command.based_on not in (None, table.version):
        message = f"rules and quotas are at version {table.version}, not {command.based_on}"
        raise RefusedError("STALE_VERSION", message, version=table.version)
    changed = _change(table, command)
    if changed:
        table.version = number
    return changed


def _change(table: AccessTable, command: AccessCommand) -> bool:
    match command:
        case PutAcl(rules=rules):
            return _put_rules(table, rules)
        case DeleteAcl(rules=ids):
            return _delete_rules(table, ids)
        case PutQuota(quota=quota):
            return _put_quota(table, quota)
        case DeleteQuota(principal=principal):
            if table.quotas.pop(principal, None) is None:
                raise RefusedError("UNKNOWN_QUOTA", f"{principal[:80]!r} has no own quota")
            return True


def _put_rules(table: AccessTable, rules: Iterable[AclRule]) -> bool:
    for rule in rules:
        check_rule(rule)
    new = {rule.id: rule for rule in rules if rule.id not in table.rules}
    if len(table.rules) + len(new) > ACL_RULES_MAX:
        message = f"there are {len(table.rules)} rules, of at most {ACL_RULES_MAX}"
        raise RefusedError("TOO_MANY_RULES", message, limit=ACL_RULES_MAX)
    table.rules |= new
    return bool(new)


def _delete_rules(table: AccessTable, ids: Iterable[str]) -> bool:
    unknown = [one for one in ids if one not in table.rules]
    if unknown:
        raise RefusedError("UNKNOWN_RULE", f"there is no rule {unknown[0][:80]!r}")
    for one in ids:
        table.rules.pop(one, None)
    return True


def _put_quota(table: AccessTable, quota: Quota) -> bool:
    check_quota(quota)
    before = table.quotas.get(quota.principal)
    if before is None and len(table.quotas) >= QUOTAS_MAX:
        message = f"there are {QUOTAS_MAX} quotas already; those without one follow that of *"
        raise RefusedError("TOO_MANY_QUOTAS", message, limit=QUOTAS_MAX)
    table.quotas[quota.principal] = quota
    return before != quota
