"""Rules against a dumb version that knows every subject there could be."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import SubjectTrie, matches, overlaps
from penstock.logd.security.acl import (
    Acl,
    AclRule,
    Action,
    Effect,
    OnCluster,
    OnStream,
    OnSubject,
    Target,
    check_rule,
)

WORDS = ("a", "b", "x")  # x is in no filter, so that no rule names it
UNIVERSE = [
    ".".join(tokens) for length in range(1, 6) for tokens in itertools.product(WORDS, repeat=length)
]
FILTERS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=0, max_size=3),
    st.sampled_from([[], [">"]]),
).filter(bool)
SUBJECTS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map(".".join)
STREAMS = st.sampled_from(["orders", "orders-eu", "logs", "__activity", "__cursors"])
RESOURCES = (
    st.sampled_from(["*", "orders", "orders-*", "logs", "l*", "__activity", "__*", "_*"])
    | FILTERS.map("subject:{}".format)
)  # fmt: skip
PRINCIPALS = st.sampled_from(["alice", "bob", "group:ops", "group:dev", "*"])
RULES = st.builds(
    AclRule,
    principal=PRINCIPALS,
    effect=st.sampled_from(Effect),
    action=st.sampled_from([Action.READ, Action.CREATE, Action.PUBLISH]),
    resource=RESOURCES,
)
TARGETS: st.SearchStrategy[Target] = st.one_of(
    st.builds(
        OnStream,
        STREAMS,
        st.lists(FILTERS, max_size=2).map(tuple),
        st.none() | FILTERS,
    ).map(lambda one: OnStream(one.name) if one.name.startswith("__") else one),
    st.builds(OnSubject, FILTERS | SUBJECTS, st.lists(STREAMS, max_size=2).map(tuple)),
    st.just(OnCluster()),
)


def subjects_of(subject_filter: str) -> set[str]:
    """Every subject that a filter matches, of those that are enough to tell filters apart."""
    return {subject for subject in UNIVERSE if matches(subject_filter, subject)}


def meant(rule: AclRule, name: str, groups: frozenset[str]) -> bool:
    return rule.principal in {name, "*", *(f"group:{group}" for group in groups)}


def by_name(resource: str, stream: str) -> bool:
    if resource == "*":
        return not stream.startswith("__")
    if resource.startswith("subject:"):
        return False
    if resource.endswith("*"):
        hidden = stream.startswith("__") and not resource.startswith("__")
        return stream.startswith(resource[:-1]) and not hidden
    return resource == stream


def within(resource: str, subject_filter: str) -> bool:
    """Whether all that a filter matches is in a rule's resource."""
    if not resource.startswith("subject:"):
        return resource == "*"
    return subjects_of(subject_filter) <= subjects_of(resource.removeprefix("subject:"))


def touches(resource: str, *filters: str) -> bool:
    """Whether there is a subject that each of some filters and a rule's resource match."""
    if not resource.startswith("subject:"):
        return resource == "*"
    return all(subjects_of(resource.removeprefix("subject:")) & subjects_of(one) for one in filters)


def allowed_by(rule: AclRule, target: Target, part: str | None) -> bool:
    """Whether a rule allows a part of a target: a filter of it, a stream, or what there is."""
    match target:
        case OnCluster():
            return rule.resource == "*"
        case OnStream(name):
            named = by_name(rule.resource, name)
            if named and (rule.action is not Action.CREATE or rule.resource == "*"):
                return True
            return part is not None and within(rule.resource, part) and not name.startswith("__")
        case OnSubject():
            return part is not None and within(rule.resource, part)


def dumb(rules: Sequence[AclRule], name: str, groups: frozenset[str], target: Target) -> bool:
    """What rules of one action come to, looking at every one of them for everything."""
    mine = [rule for rule in rules if meant(rule, name, groups)]
    deny = [rule for rule in mine if rule.effect is Effect.DENY]
    allow = [rule for rule in mine if rule.effect is Effect.ALLOW]
    match target:
        case OnCluster():
            denied = any(rule.resource == "*" for rule in deny)
            return not denied and any(allowed_by(rule, target, None) for rule in allow)
        case OnStream():
            return not stream_denied(deny, target) and stream_allowed(allow, target)
        case OnSubject(subject, streams):
            named = [by_name(rule.resource, one) for rule in deny for one in streams]
            denied = any(named) or any(touches(rule.resource, subject) for rule in deny)
            return not denied and subject_allowed(allow, target)


def stream_denied(deny: list[AclRule], target: OnStream) -> bool:
    only = (target.only,) if target.only else ()
    return any(
        rule.resource == "*"
        or by_name(rule.resource, target.name)
        or (
            rule.resource.startswith("subject:")
            and any(touches(rule.resource, one) for one in target.filters)
            and touches(rule.resource, *only)
        )
        for rule in deny
    )


def stream_allowed(allow: list[AclRule], target: OnStream) -> bool:
    if any(allowed_by(rule, target, None) for rule in allow):
        return True
    if not target.filters:
        return False
    narrow = target.only is not None and any(within(r.resource, target.only) for r in allow)
    return narrow or all(
        any(allowed_by(rule, target, one) for rule in allow) for one in target.filters
    )


def subject_allowed(allow: list[AclRule], target: OnSubject) -> bool:
    if any(within(rule.resource, target.subject) for rule in allow):
        return True
    named = [r for r in allow if r.resource != "*" and r.action is not Action.CREATE]
    return bool(target.streams) and all(
        any(by_name(rule.resource, one) for rule in named) for one in target.streams
    )


@given(
    st.lists(RULES, max_size=8),
    st.sampled_from(["alice", "bob", "eve"]),
    st.frozensets(st.sampled_from(["ops", "dev"])),
    st.sampled_from([Action.READ, Action.CREATE, Action.PUBLISH]),
    TARGETS,
)
def test_decisions_agree_with_looking_at_every_rule_and_subject(
    rules: list[AclRule], name: str, groups: frozenset[str], action: Action, target: Target
) -> None:
    acl = Acl(rules)
    mine = [rule for rule in rules if rule.action is action]
    decision = acl.decide(name, groups, action, target)
    assert decision.allowed == dumb(mine, name, groups, target)
    assert acl.decide(name, groups, action, target) is decision  # it is remembered
    if decision.allowed:
        assert decision.rule in mine
        assert decision.rule is not None
        assert decision.rule.effect is Effect.ALLOW
    for one, found in acl.who_can(action, target):
        caller = ("", frozenset([one.removeprefix("group:")]))
        if not one.startswith("group:"):
            caller = ("" if one == "*" else one, frozenset())
        assert found.allowed == dumb(mine, *caller, target)


@given(st.lists(FILTERS, min_size=1, max_size=6), TARGETS)
def test_what_overlaps_a_filter_that_is_denied_is_denied_though_everything_is_allowed(
    denied: list[str], target: Target
) -> None:
    """Of rules at random few are about the same; here all are."""
    rules = [
        rule("allow", "*", "read", "*"),
        *[rule("deny", "alice", "read", f"subject:{one}") for one in dict.fromkeys(denied)],
    ]
    decision = Acl(rules).decide("alice", NONE, Action.READ, target)
    assert decision.allowed == dumb(rules, "alice", NONE, target)


@given(FILTERS, FILTERS)
def test_filters_cover_and_overlap_as_their_subjects_do(one: str, other: str) -> None:
    trie: SubjectTrie[str] = SubjectTrie()
    trie.insert(one, "it")
    assert bool(trie.covering(other)) == (subjects_of(other) <= subjects_of(one))
    assert overlaps(one, other) == bool(subjects_of(one) & subjects_of(other))


@given(st.lists(FILTERS, max_size=12), FILTERS | SUBJECTS)
def test_filters_in_common_are_found_in_the_trie_as_by_looking_at_each(
    filters: list[str], wanted: str
) -> None:
    trie: SubjectTrie[tuple[int, str]] = SubjectTrie()
    for number, one in enumerate(filters):
        trie.insert(one, (number, one))
    found = trie.touching(wanted)
    dumb_found = [(n, one) for n, one in enumerate(filters) if overlaps(one, wanted)]
    assert sorted(found) == dumb_found


def test_a_decision_looks_at_few_of_many_rules_that_deny() -> None:
    looked: list[str] = []

    class NotedRule(AclRule, frozen=True):
        """Says when somebody looks whom it is about."""

        @override
        def __getattribute__(self, name: str) -> Any:
            if name == "principal":
                looked.append(self.resource)
            return super().__getattribute__(name)

    def noted(effect: Effect, principal: str, resource: str) -> AclRule:
        return NotedRule(principal=principal, effect=effect, action=Action.READ, resource=resource)

    denied = [noted(Effect.DENY, "bob", f"subject:team.{n}.orders.>") for n in range(2000)]
    acl = Acl([*denied, noted(Effect.ALLOW, "*", "*")])
    looked.clear()
    target = OnStream("s", ("team.7.orders.eu",))
    assert acl.decide("alice", NONE, Action.READ, target).allowed
    assert looked.count("subject:team.7.orders.>") == 1
    assert len(looked) <= 3, looked
    assert not acl.decide("bob", NONE, Action.READ, target).allowed


def rule(effect: str, principal: str, action: str, resource: str) -> AclRule:
    return AclRule(
        principal=principal, effect=Effect(effect), action=Action(action), resource=resource
    )


NONE: frozenset[str] = frozenset()
LOGS = rule("allow", "alice", "read", "subject:telemetry.logs.*")


@pytest.mark.parametrize(
    ("filters", "only", "allowed"),
    [
        (("telemetry.logs.*",), None, True),
        (("telemetry.logs.checkout",), None, True),
        (("telemetry.logs.>",), None, False),
        (("telemetry.*.checkout",), None, False),
        (("telemetry.>",), None, False),
        ((">",), None, False),
        (("*.logs.*",), None, False),
        (("telemetry.logs.*", "telemetry.logs.*.*"), None, False),
        (("telemetry.>",), "telemetry.logs.checkout", True),
        (("telemetry.>",), "telemetry.logs.>", False),
        ((), "telemetry.logs.checkout", False),
    ],
)
def test_a_wildcard_lets_nobody_see_more_than_it_matches(
    filters: tuple[str, ...], only: str | None, allowed: bool
) -> None:
    target = OnStream("any", filters, only)
    assert Acl([LOGS]).decide("alice", NONE, Action.READ, target).allowed == allowed


def test_a_name_does_not_let_anybody_create_a_stream_of_anything() -> None:
    with pytest.raises(RefusedError, match="allow create on subject"):
        check_rule(rule("allow", "alice", "create", "scratch-*"))
    sneaked = Acl([rule("allow", "alice", "create", "scratch-*")])
    target = OnStream("scratch-1", ("payments.>",))
    assert not sneaked.decide("alice", NONE, Action.CREATE, target).allowed
    check_rule(rule("deny", "*", "create", "payments*"))  # to keep names free is another thing


def test_who_is_denied_something_is_told_the_rule() -> None:
    deny = rule("deny", "group:temps", "publish", "orders")
    acl = Acl([rule("allow", "*", "publish", "*"), deny])
    target = OnStream("orders", ("o.>",))
    decision = acl.decide("alice", frozenset({"temps"}), Action.PUBLISH, target)
    assert (decision.allowed, decision.rule) == (False, deny)
    assert deny.id in decision.reason
    assert acl.decide("alice", NONE, Action.PUBLISH, target).allowed
    assert not acl.decide("alice", NONE, Action.READ, target).allowed
    assert acl.decide("alice", NONE, Action.READ, target).reason == "no rule allows it"


def test_nobody_becomes_a_group_by_name_nor_everybody() -> None:
    acl = Acl([rule("allow", "group:ops", "read", "*")], superusers=["root", "group:root", "*"])
    for name in ("group:ops", "*", "ops", "group:root", ""):
        assert not acl.decide(name, NONE, Action.READ, OnStream("s", ("a",))).allowed
        assert not acl.is_superuser(name, NONE)
    assert acl.decide("eve", frozenset({"ops"}), Action.READ, OnStream("s", ("a",))).allowed
    assert acl.decide("eve", frozenset({"root"}), Action.ADMIN, OnCluster()).superuser
    assert acl.decide("root", NONE, Action.ADMIN, OnCluster()).allowed


def test_what_the_configuration_grants_holds_beside_the_rules_until_one_denies_it() -> None:
    grant = rule("allow", "router", "read", "logs")
    logs = OnStream("logs", ("telemetry.logs.>",))
    acl = Acl([rule("allow", "alice", "read", "logs")], ["root"], [grant])
    decision = acl.decide("router", NONE, Action.READ, logs)
    assert (decision.allowed, decision.granted) == (True, True)
    assert "configuration" in decision.reason
    assert not acl.decide("alice", NONE, Action.READ, logs).granted
    assert not acl.decide("router", NONE, Action.CURSOR, logs).allowed
    assert [name for name, found in acl.who_can(Action.READ, logs) if found.allowed] == [
        "alice", "root", "router"
    ]  # fmt: skip
    assert acl.rules == (rule("allow", "alice", "read", "logs"),), "it is not among those kept"
    denied = Acl([rule("deny", "router", "read", "*")], grants=[grant])
    assert not denied.decide("router", NONE, Action.READ, logs).allowed
    kept = Acl([grant], grants=[grant]).decide("router", NONE, Action.READ, logs)
    assert not kept.granted, "the one that can be removed is named"


def test_everything_is_not_what_logd_keeps_for_itself() -> None:
    acl = Acl([rule("allow", "alice", "read", "*"), rule("allow", "bob", "read", "__activity")])
    assert not acl.decide("alice", NONE, Action.READ, OnStream("__activity")).allowed
    assert acl.decide("bob", NONE, Action.READ, OnStream("__activity")).allowed
    assert not acl.decide("bob", NONE, Action.READ, OnStream("__cursors")).allowed


@pytest.mark.parametrize(
    ("principal", "resource"),
    [
        ("", "orders"),
        (" ", "orders"),
        ("group:", "orders"),
        ("group:*", "orders"),
        ("a\nb", "orders"),
        ("a" * 257, "orders"),
        ("alice", ""),
        ("alice", "or*ders"),
        ("alice", "or ders"),
        ("alice", "../orders"),
        ("alice", "**"),
        ("alice", "o" * 65),
        ("alice", "subject:"),
        ("alice", "subject:a..b"),
        ("alice", "subject:a.>.b"),
        ("alice", "subject:a.b*"),
        ("alice", "Subject:a"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(principal: str, resource: str) -> None:
    with pytest.raises(RefusedError) as error:
        check_rule(rule("allow", principal, "read", resource))
    assert error.value.code == "BAD_RULE"
