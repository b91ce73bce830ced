"""What tests' own answers of the fetch endpoint have in common."""

from penstock.logd.fetch.wire import Document
from penstock.logd.security.principal import Principal


class LetsIn:
    """Everybody may send what they want."""

    def admit(self, request: Document, caller: Principal) -> None:
        """As `Desk`."""
