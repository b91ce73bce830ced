"""Log records: something was said, with a severity."""

from typing import Annotated, Final, Literal

from pydantic import Field

from penstock.specs.models.envelope import Record
from penstock.specs.models.scalars import Name, Text

DEFAULT_SEVERITY: Final = 9
"""The severity (INFO) of records that have none."""
FAILED_SEVERITY: Final = 17
"""The severity (ERROR) of a span that failed."""
SEVERITY_NAMES = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")


def severity_text(number: int) -> str:
    """OpenTelemetry's short name of a severity number from 1 to 24: ``INFO``, ``WARN3``."""
    name, step = SEVERITY_NAMES[(number - 1) // 4], (number - 1) % 4
    return f"{name}{step + 1}" if step else name


class LogRecord(Record, spec="log/1.0"):
    """One log record. `severity_number` is what filters compare; the text is for people."""

    kind: Literal["log"] = "log"
    severity_number: Annotated[int, Field(ge=1, le=24)]
    severity_text: Annotated[str | None, Field(max_length=32)] = None
    body: Text
    event_name: Name | None = None
