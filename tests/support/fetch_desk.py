"""What tests' own answers of the fetch endpoint have in common."""

from penstock.logd.api.operations import Document
from penstock.logd.security.principal import Principal


class LetsIn:
    """Everybody may send what they want."""

    def admit(self, request: Document, caller: Principal) -> None:
        """As `Desk`."""
