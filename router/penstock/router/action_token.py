"""Who may act on a job at its admin endpoint: whoever shows the token in `actions_token_file`."""

import hmac
from collections.abc import Mapping
from typing import Any, Final

from penstock.router.config import JobConfig
from penstock.service import Visitor

PATH: Final = "/dead-letters"
"""Where that is."""

Answer = tuple[str, Mapping[str, Any]]


def refusal(config: JobConfig, visitor: Visitor) -> Answer | None:
    """What somebody is told who may not; None: they may."""
    path = config.actions_token_file
    if path is None:
        return "404 Not Found", {"error": "the job has no actions_token_file"}
    try:
        token = path.read_text().strip()
    except OSError as error:
        return "503 Service Unavailable", {"error": f"{path}: {error.strerror}"}
    except UnicodeDecodeError:  # which would show some of it
        return "503 Service Unavailable", {"error": f"{path}: it is no text in UTF-8"}
    shown = visitor.authorization.encode("latin-1", "replace")  # as headers are read
    if not token or not hmac.compare_digest(shown, f"Bearer {token}".encode()):
        return "401 Unauthorized", {"error": "that is not the token of actions_token_file"}
    return None
