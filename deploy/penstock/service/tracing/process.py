"""A process's tracing: opened where its configuration asks for it."""

import ssl
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.base.errors import ConfigError, UnavailableError
from penstock.base.extras import install_command
from penstock.base.http.client import client_tls
from penstock.service.tracing.section import SERVICES, TracingSection

if TYPE_CHECKING:
    from penstock.service.tracing.spans import Tracer


class Tracing:
    """A process's tracer and what sends its spans; the tracer is None where nothing is traced.

    Args:
        section: The section of the configuration.
        part: A key of `SERVICES`.
        name: The name of this process among its like.
        own: Further subjects of Penstock's own spans.

    Raises:
        ConfigError: A file of the section cannot be used.
        UnavailableError: OpenTelemetry's SDK is not installed.
    """

    def __init__(
        self, section: TracingSection | None, part: str, name: str, own: Sequence[str] = ()
    ) -> None:
        self.tracer: Tracer | None = None
        if section is None or not section.enabled:
            return
        _check_authorities(section)
        try:
            from penstock.service.tracing.spans import open_tracer
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("penstock"):
                raise
            raise UnavailableError(
                f"the section `tracing` needs {error.name}, which is not installed",
                fix=install_command("tracing"),
            ) from None
        self.tracer = open_tracer(section, SERVICES[part], name, own)

    def counts(self) -> dict[str, int]:
        """Spans by outcome, and `unsent`; empty where nothing is traced."""
        return {} if self.tracer is None else self.tracer.counts()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, as far as that is possible within the time."""
        if self.tracer is not None:
            # The SDK may wait for as long as a request takes; its threads end with the process.
            closing = threading.Thread(target=self.tracer.close, name="spans-close", daemon=True)
            closing.start()
            closing.join(timeout_s)


def _check_authorities(section: TracingSection) -> None:
    if section.endpoint.startswith("http://"):
        return
    try:
        client_tls(section.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tracing.ca_file: {section.ca_file}: {error}", fix="name a readable PEM file"
        ) from None
