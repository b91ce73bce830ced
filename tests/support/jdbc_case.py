"""Databases by JDBC for tests: PostgreSQL for the suite of sinks, and others, by their drivers.

The sink needs Spark in its process, and so do these: all of a process have one session, with the
drivers of all of them.
"""

import atexit
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import pyspark
from pyspark.sql import SparkSession
from typing_extensions import override

from penstock.router.job.config import Spark
from penstock.router.sinks.jdbc.client import drivers_in
from penstock.router.spark.session import Session
from tests.support.debian import program
from tests.support.debian_daemons import daemon
from tests.support.postgres_server import SUPERUSER
from tests.support.processes import free_port
from tests.support.server_cases import PostgresCase
from tests.support.spark import gateway_of
from tests.support.waiting import wait_until


def driver_jar(name: str, *, package: str) -> str:
    """A JDBC driver of Debian; where it cannot be had: skipped, red in CI."""
    return str(program(name, package=package, directory="usr/share/java"))


def derby_jars() -> list[str]:
    """Of the database that comes with Spark."""
    assert pyspark.__file__ is not None
    jars = Path(pyspark.__file__).parent / "jars"
    patterns = ("derby-1*", "derbyshared*", "derbytools*")
    return [str(jar) for pattern in patterns for jar in jars.glob(pattern)]


def postgres_jar() -> str:
    return driver_jar("postgresql.jar", package="libpostgresql-jdbc-java")


def h2_jar() -> str:
    return driver_jar("h2.jar", package="libh2-java")


def hsqldb_jar() -> str:
    return driver_jar("hsqldb.jar", package="libhsqldb-java")


def mariadb_jar() -> str:
    return driver_jar("mariadb-java-client.jar", package="libmariadb-java")


def jdbc_spark(*, attempts: int = 1) -> SparkSession:
    """The session of this process, as a job with every kind of database has it.

    Args:
        attempts: Number of times that Spark runs a task that fails. A session with another number
            is ended.
    """
    if attempts not in _SESSIONS:
        end_jdbc_spark()
        _SESSIONS[attempts] = _started(attempts)
    return _SESSIONS[attempts].spark


def end_jdbc_spark() -> None:
    """End the session: another file's tests may start one, and a process has one at a time."""
    while _SESSIONS:
        _SESSIONS.popitem()[1].close()


_SESSIONS: dict[int, Session] = {}
"""The one that runs, by its number of attempts."""


def _started(attempts: int) -> Session:
    directory = tempfile.TemporaryDirectory(prefix="penstock-jdbc-")
    jars = f"{postgres_jar()},{h2_jar()},{hsqldb_jar()},{mariadb_jar()}"
    config = Spark(master=f"local[2,{attempts}]", conf={"spark.jars": jars})
    session = Session.start("tests", config, Path(directory.name))
    atexit.register(directory.cleanup)
    return session


class JdbcCase(PostgresCase):
    """A table in PostgreSQL that takes no POISON."""

    type = "jdbc"
    body = "record::json ->> 'body'"
    attempts: ClassVar[int] = 1

    def __init__(self, directory: Path) -> None:
        jdbc_spark(attempts=self.attempts)
        super().__init__(directory)

    @override
    def keys(self) -> dict[str, Any]:
        return {
            "url": f"jdbc:postgresql://127.0.0.1:{self.door.port}/postgres"
            "?sslmode=disable&gssEncMode=disable",
            "jars": [postgres_jar()],
            "user": SUPERUSER,
            "table": self.run,
        }

    @override
    def locked_out(self) -> tuple[dict[str, Any], Callable[[], None]]:
        super().locked_out()
        wrong = self.secret("wrong")
        return {"user": "guarded", "password": wrong}, partial(self.write_secret, "right")


class JdbcTasksCase(JdbcCase):
    """Likewise; tasks of Spark encode."""

    in_tasks = True


@dataclass(frozen=True, slots=True)
class Database:
    """A database of a test's own, known by nothing but its driver."""

    directory: Path
    url: str
    jars: list[str]
    quote: str = '"'

    def query(self, sql: str) -> list[list[str | None]]:
        """What a statement finds; columns are named as in "offset"."""
        jvm = gateway_of(jdbc_spark()).jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        (driver,) = drivers_in([Path(jar) for jar in self.jars])[:1]
        nothing = jvm.java.util.Properties()
        connection = loader.loadClass(driver).newInstance().connect(self.url, nothing)
        try:
            statement = connection.createStatement()
            if not statement.execute(sql.replace('"', self.quote)):
                return []
            rows, found = statement.getResultSet(), []
            width = rows.getMetaData().getColumnCount()
            while rows.next():
                found.append([rows.getString(at + 1) for at in range(width)])
            return found
        finally:
            connection.close()


def derby(directory: Path) -> Database:
    """The database that comes with Spark."""
    return Database(directory, f"jdbc:derby:{directory}/db;create=true", derby_jars())


def h2(directory: Path) -> Database:
    """In a file, written at once."""
    return Database(directory, f"jdbc:h2:{directory}/db;WRITE_DELAY=0", [h2_jar()])


def hsqldb(directory: Path) -> Database:
    """In a file, written at once."""
    url = f"jdbc:hsqldb:file:{directory}/db;hsqldb.write_delay=false;shutdown=true"
    return Database(directory, url, [hsqldb_jar()])


def mariadb(directory: Path) -> Database:
    """A server."""
    name = f"d{directory.name}"
    made = Database(
        directory,
        f"jdbc:mariadb://127.0.0.1:{mariadb_port()}/{{}}?user=penstock",
        [mariadb_jar()],
        quote="`",
    )
    replace(made, url=made.url.format("")).query(f'CREATE DATABASE "{name}"')
    return replace(made, url=made.url.format(name))


@cache
def mariadb_port() -> int:
    """The port of a running MariaDB that lets everybody in."""
    server = daemon("mariadbd", package="mariadb-server-core")
    directory = tempfile.TemporaryDirectory(prefix="penstock-mariadb-")
    home = Path(directory.name)
    user = "nobody" if os.geteuid() == 0 else getpass.getuser()
    shutil.chown(home, user)
    messages = (server.root or Path("/")) / "usr" / "share" / "mysql"
    port = free_port()
    process = subprocess.Popen(
        [
            str(server.path), "--no-defaults", f"--user={user}", f"--datadir={home}",
            f"--socket={home}/s", f"--port={port}", "--bind-address=127.0.0.1",
            "--skip-grant-tables", f"--lc-messages-dir={messages}", "--innodb-buffer-pool-size=16M",
        ],
        env=server.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    atexit.register(directory.cleanup)
    atexit.register(process.wait, 20)
    atexit.register(process.terminate)
    wait_until(lambda: _answers(port), within_s=60, what="MariaDB ready")
    return port


def _answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
