"""Rules as nats-server's permissions."""

from penstock.logd.security.acl import (
    INBOXES,
    AclRule,
    Action,
    Effect,
    nats_configuration,
    nats_users,
)

STREAMS = {"orders": ["orders.>"], "orders-eu": ["eu", "eu.*"], "logs": ["telemetry.logs.*"]}


def rule(text: str) -> AclRule:
    effect, principal, action, resource = text.split()
    return AclRule(
        principal=principal, effect=Effect(effect), action=Action(action), resource=resource
    )


def test_rules_about_streams_become_rules_about_their_subjects() -> None:
    rules = [
        rule("allow alice publish orders-*"),
        rule("allow alice publish subject:a.*"),
        rule("deny alice publish orders"),
        rule("allow alice read logs"),
        rule("allow alice admin *"),
        rule("allow group:ops publish logs"),
        rule("deny * publish subject:x"),
    ]
    everybody, alice = nats_users(rules, STREAMS)
    assert (everybody.name, everybody.publish_allow, everybody.publish_deny) == ("*", (), ("x",))
    assert alice.publish_allow == ("a.*", "eu", "eu.*")
    assert alice.publish_deny == ("orders.>", "x")
    assert alice.subscribe_allow == (INBOXES, "telemetry.logs.*")


def test_whoever_may_publish_anything_may_not_forge_acks() -> None:
    *_, alice = nats_users([rule("allow alice publish subject:>")], STREAMS)
    assert alice.publish_allow == (">",)
    assert INBOXES in alice.publish_deny
    *_, alice = nats_users([rule("deny alice publish *")], STREAMS)
    assert alice.publish_deny == (">",)


def test_users_have_passwords_of_their_own_and_whoever_is_not_named_may_nothing() -> None:
    rules = [rule("allow a.b read orders"), rule("allow a-b read orders")]
    text = nats_configuration(nats_users(rules, STREAMS), logd_user="logd")
    assert 'user: "a-b", password: $NATS_PASSWORD_A_B\n' in text
    assert 'user: "a.b", password: $NATS_PASSWORD_A_B_2\n' in text
    assert 'user: "logd", password: $NATS_PASSWORD_LOGD\n' in text
    default = text.partition("users:")[0]
    assert 'publish: { deny: [">"] }' in default
