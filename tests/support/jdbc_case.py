"""PostgreSQL by its JDBC driver, for the suite of sinks that speak no HTTP; drivers of others."""

import atexit
import getpass
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pyspark
from typing_extensions import override

from penstock.router.sinks.jdbc.client import spark_libraries
from penstock.router.spark.java import find_java
from tests.support.debian import program
from tests.support.debian_daemons import daemon
from tests.support.postgres_server import SUPERUSER
from tests.support.processes import free_port
from tests.support.server_cases import PostgresCase
from tests.support.waiting import wait_until

_QUERY: Final = Path(__file__).with_name("Query.java")


def driver_jar(name: str, *, package: str) -> str:
    """A JDBC driver of Debian; where it cannot be had: skipped, red in CI."""
    return str(program(name, package=package, directory="usr/share/java"))


def derby_jars() -> list[str]:
    """Of the database that comes with Spark."""
    assert pyspark.__file__ is not None
    jars = Path(pyspark.__file__).parent / "jars"
    return [str(jar) for pattern in ("derby-1*", "derbyshared*") for jar in jars.glob(pattern)]


class JdbcCase(PostgresCase):
    """A table in PostgreSQL that takes no POISON."""

    type = "jdbc"
    body = "record::json ->> 'body'"

    @override
    def keys(self) -> dict[str, Any]:
        return {
            "url": f"jdbc:postgresql://127.0.0.1:{self.door.port}/postgres"
            "?sslmode=disable&gssEncMode=disable",
            "jars": [driver_jar("postgresql.jar", package="libpostgresql-jdbc-java")],
            "user": SUPERUSER,
            "table": self.run,
        }

    @override
    def locked_out(self) -> tuple[dict[str, Any], Callable[[], None]]:
        super().locked_out()
        wrong = self.secret("wrong")
        return {"user": "guarded", "password": wrong}, partial(self.write_secret, "right")


@dataclass(frozen=True, slots=True)
class Database:
    """A database of a test's own, known by nothing but its driver."""

    directory: Path
    url: str
    jars: list[str]
    quote: str = '"'

    def query(self, sql: str) -> list[list[str | None]]:
        """What a statement finds; columns are named as in "offset"."""
        libraries = ":".join([*map(str, spark_libraries()), *self.jars])
        java = find_java(self.directory).home / "bin" / "java"
        ran = subprocess.run(
            [
                str(java), "-Duser.timezone=UTC",
                "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8",
                "-cp", libraries, "org.codehaus.janino.SimpleCompiler", str(_QUERY), "Query",
                self.url, sql.replace('"', self.quote),
            ],
            capture_output=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr.decode()
        return [json.loads(line) for line in ran.stdout.splitlines()]


def derby(directory: Path) -> Database:
    """The database that comes with Spark."""
    return Database(directory, f"jdbc:derby:{directory}/db;create=true", derby_jars())


def h2(directory: Path) -> Database:
    """In a file, written at once."""
    jar = driver_jar("h2.jar", package="libh2-java")
    return Database(directory, f"jdbc:h2:{directory}/db;WRITE_DELAY=0", [jar])


def hsqldb(directory: Path) -> Database:
    """In a file, written at once."""
    jar = driver_jar("hsqldb.jar", package="libhsqldb-java")
    return Database(
        directory, f"jdbc:hsqldb:file:{directory}/db;hsqldb.write_delay=false;shutdown=true", [jar]
    )


def mariadb(directory: Path) -> Database:
    """A server."""
    name = f"d{directory.name}"
    made = Database(
        directory,
        f"jdbc:mariadb://127.0.0.1:{mariadb_port()}/{{}}?user=penstock",
        [driver_jar("mariadb-java-client.jar", package="libmariadb-java")],
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
