"""A database in the JVM of Spark's driver, by JDBC: statements there, rows by Spark's own writer.

The writer (`format("jdbc")`) inserts from the executors, each task in a transaction of its own, and
Spark may run a task again after that transaction. So it appends to a staging table, and what is in
there is counted before it counts.

JDBC has no limit that every driver keeps. Statements have a query timeout, and connections the
socket timeout of the drivers whose property is known here. What takes longer all the same is given
up: Spark's tasks are cancelled, and the driver's connection is aborted.
"""

import math
import threading
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_SERVICE: Final = "META-INF/services/java.sql.Driver"
"""Names a jar's drivers (JDBC 4.0, 9.2.1)."""

_SOCKET_TIMEOUTS: Final = {
    "jdbc:postgresql:": ("socketTimeout", 1),
    "jdbc:mariadb:": ("socketTimeout", 1000),
    "jdbc:mysql:": ("socketTimeout", 1000),
    "jdbc:sqlserver:": ("socketTimeout", 1000),
    "jdbc:oracle:": ("oracle.jdbc.ReadTimeout", 1000),
}
"""Property by which a driver limits each read, and its units in a second, by the URL's beginning.

From the documents of pgJDBC, Connector/J of MariaDB and MySQL, and the drivers of Microsoft and
Oracle.
"""

_KINDS: Final = (
    ("SQLDataException", "data"),
    ("SQLIntegrityConstraintViolationException", "constraint"),
    ("SQLSyntaxErrorException", "statement"),
    ("SQLFeatureNotSupportedException", "statement"),
    ("SQLInvalidAuthorizationSpecException", "login"),
    ("SQLTransientException", "passing"),
    ("SQLRecoverableException", "passing"),
)
"""The categories of JDBC 4, by which a driver says what its own codes mean."""

_CAUSES_MAX: Final = 30
_TASK_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""A frame that is made of an Arrow table has a task for each batch."""


class DatabaseError(Exception):
    """The database, its driver or Spark's writer failed; nothing of a transaction is stored.

    Attributes:
        state: SQLSTATE; None where there is none.
        kind: Category of the driver's exception: a value of `_KINDS`, or "other".
    """

    def __init__(self, text: str, *, state: str | None = None, kind: str = "other") -> None:
        super().__init__(text)
        self.state = state
        self.kind = kind


class NoAnswerError(Exception):
    """The database took too long; what it was asked may be done."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is, and how it is reached.

    Attributes:
        drivers: Names of classes, of which one takes the URL.
        timeout_s: Limit of a statement; what takes twice as long is given up.
        task_rows: Maximum rows of one task of Spark's writer, which has a connection.
    """

    url: str
    drivers: tuple[str, ...]
    properties: Mapping[str, str]
    timeout_s: float
    task_rows: int

    def limited(self) -> dict[str, str]:
        """Return the properties with the driver's socket timeout, where none is given."""
        found = dict(self.properties)
        for begin, (name, units) in _SOCKET_TIMEOUTS.items():
            if self.url.startswith(begin) and f"{name}=" not in self.url:
                found.setdefault(name, str(math.ceil(2 * self.timeout_s * units)))
        return found


def drivers_in(jars: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the drivers that jars say they have.

    Raises:
        OSError: A jar cannot be read.
        zipfile.BadZipFile: A file is no jar.
    """
    found: list[str] = []
    for jar in jars:
        with zipfile.ZipFile(jar) as files:
            if _SERVICE in files.namelist():
                lines = files.read(_SERVICE).decode().splitlines()
                found += [name for line in lines if (name := line.partition("#")[0].strip())]
    return tuple(dict.fromkeys(found))


class Database:
    """A connection of the driver's JVM, and what Spark writes beside it; for one thread at a time.

    Args:
        spark: The running session; the jars of the database's driver are in its `spark.jars`.
        address: Where the database is.

    Attributes:
        product: The database's name for itself.
        quote: Sign around an identifier.

    Raises:
        DatabaseError: There is no such driver, or no connection.
        NoAnswerError: The database does not answer.
    """

    def __init__(self, spark: SparkSession, address: Address) -> None:
        self._spark = spark.newSession()
        self._spark.conf.set(_TASK_ROWS, max(address.task_rows, 1))
        self._jvm: Any = spark._jvm  # noqa: SLF001 - pyspark has no public way to its JVM
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - likewise
        self._address = address
        self._connection: Any = None
        self._limit_s = math.ceil(address.timeout_s)
        self._driver = ""
        with self._answers():
            self._connection = connection = self._connected()
            about = connection.getMetaData()
            self.product: str = about.getDatabaseProductName()
            self.quote: str = about.getIdentifierQuoteString().strip()

    @property
    def is_in_utc(self) -> bool:
        """True if drivers write times without a zone in UTC, for they do it in the JVM's zone."""
        zone = self._jvm.java.util.TimeZone.getDefault()
        return not zone.getRawOffset() and not zone.useDaylightTime()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of the block together; undo them where one fails.

        Raises:
            DatabaseError: One fails.
            NoAnswerError: The database does not answer; all of them may be done, or none.
        """
        with self._answers():
            try:
                yield
                self._connection.commit()
            except BaseException:
                with suppress(Py4JError):  # of a connection that broke: what broke it says more
                    self._connection.rollback()
                raise

    def execute(self, sql: str) -> int:
        """Run a statement within a transaction; returns how many rows it changed."""
        statement = self._connection.createStatement()
        try:
            self._limit(statement)
            statement.execute(sql)
            return int(statement.getUpdateCount())
        finally:
            statement.close()

    def number(self, sql: str) -> int:
        """Return the number that a query within a transaction finds."""
        statement = self._connection.createStatement()
        try:
            self._limit(statement)
            rows = statement.executeQuery(sql)
            rows.next()
            return int(rows.getLong(1))
        finally:
            statement.close()

    def tables(self, pattern: str, owner: str | None) -> list[str]:
        """Return the names of an owner's tables that match a pattern of SQL's LIKE."""
        about = self._connection.getMetaData()
        found = about.getTables(*self._owned_by(owner), pattern, None)
        return list(_column(found, "TABLE_NAME"))

    def has_table(self, name: str, owner: str | None) -> bool:
        escape = self._connection.getMetaData().getSearchStringEscape()
        return bool(self.tables(literal(name, escape), owner))

    def primary_key(self, table: str, owner: str | None) -> frozenset[str]:
        """Return the columns of a table's primary key; none where there is no table."""
        about = self._connection.getMetaData()
        found = about.getPrimaryKeys(*self._owned_by(owner), table)
        return frozenset(_column(found, "COLUMN_NAME"))

    def append(self, rows: pa.Table, table: str) -> None:
        """Append rows, whose columns have the table's names, by Spark's writer; the name is quoted.

        Raises:
            DatabaseError: A task of Spark's failed; the others may have inserted their rows.
            NoAnswerError: It took too long; likewise.
        """
        address = self._address
        options = {
            **address.limited(),
            "url": spark_url(address.url),
            "driver": self._driver,
            "dbtable": table,
            "queryTimeout": str(self._limit_s),
        }
        with self._answers():
            frame = self._spark.createDataFrame(rows)
            frame.write.format("jdbc").options(**options).mode("append").save()

    def close(self) -> None:
        """Close the connection, unless the JVM has ended before."""
        if self._connection is not None:
            with suppress(Py4JError, OSError):  # it ends with the JVM
                self._connection.close()
            self._connection = None

    def _connected(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in self._address.limited().items():
            properties.setProperty(name, value)
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        self._jvm.java.sql.DriverManager.setLoginTimeout(self._limit_s)
        for name in self._address.drivers:
            driver = loader.loadClass(name).newInstance()
            connection: Any = driver.connect(self._address.url, properties)
            if connection is not None:
                self._driver = name
                connection.setAutoCommit(False)
                return connection
        raise DatabaseError("no jar has a driver for this url", kind="statement")

    def _owned_by(self, owner: str | None) -> tuple[str | None, str | None]:
        """The catalog and the schema of an owner's tables; None: of the connection's own."""
        if not self._connection.getMetaData().supportsSchemasInTableDefinitions():
            return owner or self._connection.getCatalog(), None
        return self._connection.getCatalog(), owner or self._connection.getSchema()

    def _limit(self, statement: Any) -> None:
        if not self._limit_s:
            return
        try:
            statement.setQueryTimeout(self._limit_s)
        except Py4JJavaError as error:
            if not self._is(error.java_exception, "java.sql.SQLFeatureNotSupportedException"):
                raise
            self._limit_s = 0  # `_answers` has a limit, too

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Within the block, an exception of Java's is one of this module, and the time has an end.

        Raises:
            DatabaseError: Java's exception.
            NoAnswerError: The time is over.
        """
        limit_s = 2 * self._address.timeout_s + 1  # sockets' own limits come first
        context, tag = self._spark.sparkContext, f"jdbc-{uuid.uuid4().hex}"
        late = threading.Event()

        def give_up() -> None:
            late.set()
            with suppress(Py4JError):  # the JVM ends, or the driver cannot: the caller goes on then
                context.cancelJobsWithTag(tag)
                if self._connection is not None:
                    pool = self._jvm.java.util.concurrent.ForkJoinPool.commonPool()
                    self._connection.abort(pool)

        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        context.addJobTag(tag)
        try:
            yield
        except (Py4JJavaError, PySparkException) as error:
            if late.is_set():
                raise NoAnswerError(f"no answer within {limit_s:g} s") from None
            raise self._error(error) from None
        finally:
            timer.cancel()
            with suppress(Py4JError):  # the JVM has ended
                context.removeJobTag(tag)

    def _error(self, error: Py4JJavaError | PySparkException) -> DatabaseError:
        """What a driver said, out of what the JVM has made of it."""
        java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        if java is None:
            return DatabaseError(str(error))
        causes = list(_causes(java))
        found = next((it for it in causes if self._is(it, "java.sql.SQLException")), None)
        if found is None:
            cause = causes[-1]
            if self._is(cause, "java.lang.ClassNotFoundException"):
                text = f"no jar has the class {cause.getMessage()}"
                return DatabaseError(text, kind="statement")
            return DatabaseError(str(cause.toString()))
        found = self._row_error(found)
        kinds = (kind for name, kind in _KINDS if self._is(found, f"java.sql.{name}"))
        text, state = found.getMessage(), found.getSQLState()
        return DatabaseError(str(text), state=state, kind=next(kinds, "other"))

    def _row_error(self, error: Any) -> Any:
        """Return the error of the row that the error of a batch is about."""
        found = error
        for _ in range(_CAUSES_MAX):
            if not self._is(found, "java.sql.BatchUpdateException"):
                return found
            following = found.getNextException()
            if following is None and self._is(found.getCause(), "java.sql.SQLException"):
                following = found.getCause()
            if following is None:
                return found
            found = following
        return found

    def _is(self, found: Any, name: str) -> bool:
        return found is not None and bool(is_instance_of(self._gateway, found, name))


def _causes(error: Any) -> Iterator[Any]:
    for _ in range(_CAUSES_MAX):
        yield error
        error = error.getCause()
        if error is None:
            return


def _column(rows: Any, name: str) -> Iterator[str]:
    try:
        while rows.next():
            yield rows.getString(name)
    finally:
        rows.close()


def literal(name: str, escape: str | None) -> str:
    """Return a name as a pattern of LIKE that matches only itself."""
    if not escape:
        return name
    escaped = name.replace(escape, escape + escape)
    return escaped.replace("_", f"{escape}_").replace("%", f"{escape}%")


def spark_url(url: str) -> str:
    """Return the URL by which Spark knows the dialect: it has one of MySQL, none of MariaDB.

    MariaDB's driver takes MySQL's URLs if they hold `permitMysqlScheme`.
    """
    prefix = "jdbc:mariadb:"
    if not url.startswith(prefix):
        return url
    return f"jdbc:mysql:{url.removeprefix(prefix)}{'&' if '?' in url else '?'}permitMysqlScheme"
