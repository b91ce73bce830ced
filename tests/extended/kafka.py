"""Apache Kafka as Maven Central has it: one node that is broker and controller.

It has a listener for each way in: the tests' door stands in front of one, at the port that is
advertised for it; one has TLS, and one a login. Nobody makes topics by naming them.
"""

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from tests.extended import maven
from tests.extended.product import Product, UnavailableError, process
from tests.support.certificates import Authority
from tests.support.processes import free_port
from tests.support.real_kafka import VARIABLE, Broker

VERSION: Final = "4.4.0"
JAVA_MIN: Final = 17

_ARTIFACT: Final = f"org.apache.kafka:kafka_2.13:{VERSION}"
_SETTINGS: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=LOGIN
listeners=CONTROLLER://127.0.0.1:{controller},DOOR://127.0.0.1:{it.plain},TLS://127.0.0.1:{it.tls},\
LOGIN://127.0.0.1:{it.login}
advertised.listeners=DOOR://127.0.0.1:{it.door},TLS://127.0.0.1:{it.tls},LOGIN://127.0.0.1:{it.login}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,DOOR:PLAINTEXT,TLS:SSL,LOGIN:SASL_PLAINTEXT
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={home}/broker.pem
listener.name.login.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{it.user}" password="{it.password}";
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:{it.user}
log.dirs={home}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """The environment that names it to the tests, while it runs.

    Raises:
        UnavailableError: No Java of that age, no Maven, or it does not come up.
    """
    home = directory / f"kafka-{VERSION}"
    jars = maven.libraries(_ARTIFACT, home)
    java = [str(maven.java(JAVA_MIN) / "bin" / "java"), "-Xmx512m", "-cp", f"{jars}/*"]
    broker = _described(home)
    command: list[str | Path] = [*java, "kafka.Kafka", _formatted(home, broker, java)]
    with process(command, lambda: _knows(broker), home / "log") as pid:
        yield {VARIABLE: json.dumps(asdict(replace(broker, pid=pid)))}


def _described(home: Path) -> Broker:
    authority = Authority(home / "authority")
    shown = authority.sign("kafka", "IP:127.0.0.1")
    (home / "broker.pem").write_bytes(shown.key.read_bytes() + shown.cert.read_bytes())
    plain, door, tls, login = (free_port() for _ in range(4))
    return Broker(plain, door, tls, str(authority.cert), login, "penstock", uuid.uuid4().hex)


def _formatted(home: Path, broker: Broker, java: list[str]) -> Path:
    """Its settings; its storage is new."""
    settings = home / "server.properties"
    settings.write_text(_SETTINGS.format(controller=free_port(), it=broker, home=home))
    shutil.rmtree(home / "data", ignore_errors=True)
    login = f"SCRAM-SHA-512=[name={broker.user},password={broker.password}]"
    done = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", "cGVuc3RvY2stdGVzdHMtMQ",
         "-c", str(settings), "--add-scram", login],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise UnavailableError(f"its storage cannot be formatted: {done.stderr[-400:]}")
    return settings


def _knows(broker: Broker) -> bool:
    """Whether it lets its user in."""
    try:
        return bool(broker.admin().list_topics(timeout=2).brokers)
    except KafkaException:
        return False


KAFKA: Final = Product(
    f"Apache Kafka {VERSION}", running,
    ("tests/extended/test_kafka.py", "tests/live/test_router_kafka.py",
     "tests/live/test_router_kafka_tasks.py", "tests/live/test_router_server_sinks.py",
     "tests/live/test_router_previews.py"),
    "kafka",
)  # fmt: skip
