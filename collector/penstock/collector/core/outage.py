"""What is said of a server while it cannot be used: since when, and why."""

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Outage:
    """One time without a connection.

    Attributes:
        since_ns: When it began, of the clock for dates.
        said: What the last attempt met; empty before the first one.
        lasting: It ends only when somebody corrects something, here or there.
    """

    since_ns: int
    said: str = ""
    lasting: bool = False

    def text(self, address: str) -> str:
        """A reason for being degraded."""
        since = datetime.fromtimestamp(self.since_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        what = "used" if self.lasting else "reached"
        why = f": {self.said}" if self.said else ""
        return f"NATS at {address} cannot be {what} since {since}{why}; held in the spool"
