"""The JDBC sink where Spark runs a task again whose rows are in the staging table already."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jdbc_case import JdbcCase, end_jdbc_spark
from tests.support.sink_batches import batch, dead_letters, log_record
from tests.support.tcp_door import Break

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", autouse=True)
def _spark_ends() -> Iterator[None]:
    yield
    end_jdbc_spark()


COUNT = 40


class JdbcOfThreeAttempts(JdbcCase):
    """Spark runs a task up to three times."""

    attempts = 3


@pytest.fixture
def case(tmp_path: Path) -> Iterator[JdbcCase]:
    made = JdbcOfThreeAttempts(tmp_path)
    yield made
    made.close()


def test_rows_that_a_task_has_staged_twice_are_stored_once(case: JdbcCase) -> None:
    """The answer to the first attempt's commit is lost; the sink counts what is staged."""
    sink, made = case.sink()
    case.door.faults.append(Break.TAKEN)
    sink.write(batch([log_record(number) for number in range(COUNT)]))
    assert case.stored() == Counter(range(COUNT))
    assert dead_letters(made) == []
    assert made.meter.stage("x", received=COUNT, lag=0).errors == 1, "staged again"


def test_a_row_that_is_refused_is_named_although_spark_tries_each_task_again(
    case: JdbcCase,
) -> None:
    sink, made = case.sink()
    records = [log_record(number) for number in range(COUNT)]
    records[7]["resource"]["service.name"] = "x" * 2000
    records[9] = case.poison(9)
    case.admin.execute(f"ALTER TABLE {case.run} ALTER COLUMN service TYPE VARCHAR(100)")
    sink.write(batch(records))
    assert case.stored() == Counter(range(COUNT)) - Counter([7, 9])
    assert [(it["offset"], it["code"]) for it in dead_letters(made)] == [
        (7, "sql_22001"),
        (9, "sql_23514"),
    ]
