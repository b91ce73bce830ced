"""A topic of a real Kafka broker, in place of librdkafka's mock: `tests/extended` starts it."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic
from typing_extensions import override

from tests.support.kafka_case import KafkaCase
from tests.support.server_cases import Trouble
from tests.support.tcp_door import Break

_ADMIN_S: Final = 30
_MANY: Final = 1000
_EVERYBODY: Final = "User:ANONYMOUS"


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker with a listener for each way in.

    Attributes:
        plain: The port behind the door; clients that come there are sent to `door`.
        door: Where the door has to be.
        tls: A port with TLS.
        authority: Who signed its certificate.
        login: A port with SCRAM-SHA-512, for `user`, who may do everything.
        user: With `password`.
        password: Of `user`.
        pid: Of its process.
    """

    plain: int
    door: int
    tls: int
    authority: str
    login: int
    user: str
    password: str
    pid: int = 0

    def admin(self) -> AdminClient:
        """Who may do everything."""
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
        named = {"sasl.username": self.user, "sasl.password": self.password}
        return AdminClient({"bootstrap.servers": f"127.0.0.1:{self.login}", **login, **named})


VARIABLE: Final = "PENSTOCK_TEST_KAFKA"
"""A `Broker` as a JSON object."""


@cache
def broker() -> Broker | None:
    """The one that the environment names."""
    named = os.environ.get(VARIABLE)
    return Broker(**json.loads(named)) if named else None


def kafka_case(directory: Path, *, in_tasks: bool = False) -> KafkaCase:
    """A topic of the broker that the environment names, or else of the mock."""
    named = broker()
    made = KafkaCase(directory) if named is None else RealKafkaCase(directory, named)
    made.in_tasks = in_tasks
    return made


class RealKafkaCase(KafkaCase):
    """What a broker refuses only because it was told to is skipped: a real one is told nothing."""

    takes_future = False
    """Since version 4: an hour ahead at most (`message.timestamp.after.max.ms`)."""

    def __init__(self, directory: Path, real: Broker) -> None:
        self.real = real
        self.admin = real.admin()
        self.door_port = real.door
        super().__init__(directory)

    @override
    def port(self) -> int:
        return self.real.plain

    @override
    def make_topic(self, topic: str, **settings: str) -> None:
        """One partition."""
        made = self.admin.create_topics([NewTopic(topic, 1, config=settings)])
        made[topic].result(_ADMIN_S)

    @override
    def stand_behind(self, door_port: int) -> None:
        assert door_port == self.real.door

    @override
    def refuse(self, request: int, *errors: int) -> NoReturn:
        pytest.skip("a real broker refuses nothing on demand")

    @override
    def breaks_after(self, transactions: int) -> Callable[[], None]:
        self.door.faults += [None] * transactions
        self.door.faults += [Break.RESET] * _MANY
        return self.door.faults.clear

    @override
    @contextmanager
    def encrypted(self, directory: Path) -> Iterator[tuple[int, Path]]:
        yield self.real.tls, Path(self.real.authority)

    @override
    def troubles(self) -> Mapping[str, Trouble]:
        return {**super().troubles(), "no right": self._without_right}

    def _without_right(self) -> Callable[[], None]:
        rights = [
            self._right(AclOperation.ALL, AclPermissionType.ALLOW),
            self._right(AclOperation.WRITE, AclPermissionType.DENY),
        ]
        for made in self.admin.create_acls(rights).values():
            made.result(_ADMIN_S)
        return partial(self._forget_rights, rights)

    def _right(self, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC, self.run, ResourcePatternType.LITERAL, _EVERYBODY, "*",
            operation, permission,
        )  # fmt: skip

    def _forget_rights(self, rights: list[AclBinding]) -> None:
        filters = [
            AclBindingFilter(
                it.restype, it.name, it.resource_pattern_type, it.principal, it.host,
                it.operation, it.permission_type,
            )
            for it in rights
        ]  # fmt: skip
        for forgotten in self.admin.delete_acls(filters).values():
            forgotten.result(_ADMIN_S)

    @override
    def locked_out(self) -> tuple[dict[str, Any], Callable[[], None]]:
        keys = {
            "bootstrap_servers": f"127.0.0.1:{self.real.login}",
            "security_protocol": "sasl_plaintext",
            "user": self.real.user, "password": self.secret("wrong"),
        }  # fmt: skip
        return keys, partial(self.write_secret, self.real.password)

    @override
    def close(self) -> None:
        for close in self.closing:
            close()
        self.door.close()
