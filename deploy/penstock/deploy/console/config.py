"""The console's configuration."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from penstock.deploy.up.layout import Layout, default_root, read_running
from penstock.logd.client import Access
from penstock.service import Quantities, UnavailableError, load_config
from penstock.service.admin_access import AdminAccess
from penstock.service.config import HostPort, HostPorts, check_document
from penstock.service.tracing import TracingSection

PREFIX = "PENSTOCK_CONSOLE"
"""The prefix of environment variables that override keys."""


def is_loopback(host: str) -> bool:
    """Return whether traffic to the host stays on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Section(Quantities):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServedTls(_Section):
    """The certificate that browsers are shown.

    Attributes:
        cert_file: PEM, with the intermediate certificates.
        key_file: PEM; none: it is in `cert_file`.
    """

    cert_file: Path
    key_file: Path | None = None


class AccessSection(_Section):
    """The credentials with which the console asks logd, and parts whose address is https.

    Attributes:
        tls: Whether logd's fetch has TLS; so it has with `ca_file` or `cert_file`.
        ca_file: PEM; whom to trust instead of the system's authorities.
        cert_file: PEM; the console's certificate.
        key_file: PEM; its key.
        token_file: Holds a token, in its only line.
    """

    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None

    def access(self) -> Access:
        """Return the credentials for logd's client.

        Raises:
            ValueError: The keys contradict each other.
        """
        return Access(**self.model_dump())


class HistorySection(_Section):
    """The console's history: 15 minutes, 6 hours and 7 days of figures.

    Attributes:
        directory: Directory that outlasts a restart; one console uses it. None: in memory alone.
        max_series: Figures that are kept, of the pipeline and of each stream, collector, job and
            sink; each takes 1.2 KB of memory, and of the disk. Those of streams go first.
    """

    directory: Path | None = None
    max_series: Annotated[int, Field(ge=100, le=100_000)] = 5_000


class SearchSection(_Section):
    """Bounds of the searches of the page.

    Attributes:
        max_concurrent: Searches that run at a time, each on a thread with its connection to logd;
            further ones are refused.
        max_records: Records of one answer; the page goes on behind them.
        max_trace_records: Records of a trace of which spans and logs are drawn.
        timeout_s: Seconds in which a search looks at the log; then its answer is what it has found,
            and says so.
        job_files: Files of jobs on this machine, which are read for a search that wants it if
            their jobs do not answer. It takes Spark.
    """

    max_concurrent: Annotated[int, Field(ge=1, le=32)] = 4
    max_records: Annotated[int, Field(ge=1, le=500)] = 100
    max_trace_records: Annotated[int, Field(ge=1, le=5_000)] = 500
    timeout_s: Annotated[float, Field(ge=1, le=600)] = 60.0
    job_files: tuple[Path, ...] = ()


class ConsoleConfig(_Section):
    """The whole file.

    Attributes:
        listen: Address of the page.
        admin: Address of `/healthz`, `/metrics` and `/status`; none: they are not served.
        admin_access: Access to more than the health there; none: open to all.
        tracing: Spans of actions, sent to a collector; none: there are none.
        parts: Admin endpoints by name, as in `logd-1: http://10.0.0.1:9294`; that of nats-server
            is its monitoring.
        each_address: Parts whose host's name stands for several: each address is a part, too.
        logd: Addresses of logd's fetch; none: no streams and no records are shown.
        hosts: Names by which browsers may call the console, besides where it listens.
        token_file: Holds the token for actions; made when it is not there. None: no actions.
        read_token_file: Holds a token for looking alone; none: only that of `token_file` opens.
        router_token_file: Holds the token of the jobs' `actions_token_file`; none: `token_file`.
        read_without_token: Whether anybody who reaches the console may look; none: only while it
            listens on this machine alone.
        tls: None: it is served without.
        insecure_listener: It may go without TLS where other machines can reach it.
        access: Credentials of the console at the parts.
        part_tokens: Files with tokens of parts, by name, that do not take that of `access`; each is
            shown to its part alone, over https.
        history: Settings of the history.
        search: Bounds of searches.
        poll_interval_s: Seconds between questions to a part; a part that takes long to answer is
            asked less often.
        timeout_s: Maximum seconds of a part's answer.
    """

    listen: HostPort = "127.0.0.1:9299"
    admin: HostPort | None = None
    admin_access: AdminAccess | None = None
    tracing: TracingSection | None = None
    parts: dict[Annotated[str, Field(min_length=1, max_length=64)], str] = Field(default={})
    each_address: tuple[str, ...] = ()
    logd: HostPorts | None = None
    hosts: tuple[str, ...] = ()
    token_file: Path | None = None
    read_token_file: Path | None = None
    router_token_file: Path | None = None
    read_without_token: bool | None = None
    tls: ServedTls | None = None
    insecure_listener: bool = False
    access: AccessSection = AccessSection()
    part_tokens: dict[str, Path] = Field(default={})
    history: HistorySection = HistorySection()
    search: SearchSection = SearchSection()
    poll_interval_s: Annotated[float, Field(ge=0.2, le=60)] = 1.0
    timeout_s: Annotated[float, Field(ge=0.1, le=30)] = 2.0

    def access_to(self, part: str) -> AccessSection:
        """Return the credentials for a part."""
        token_file = self.part_tokens.get(part, self.access.token_file)
        return self.access.model_copy(update={"token_file": token_file})

    @property
    def is_local(self) -> bool:
        """True if only this machine can connect."""
        return is_loopback(self.listen.rpartition(":")[0].strip("[]"))

    @property
    def anybody_may_look(self) -> bool:
        """True if reading needs no token."""
        return self.is_local if self.read_without_token is None else self.read_without_token

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, url in self.parts.items():
            if not url.startswith(("http://", "https://")):
                msg = f"parts.{name}: {url} is no address: http://HOST:PORT"
                raise ValueError(msg)
        for name in self.part_tokens:
            if not self.parts.get(name, "").startswith("https://"):
                msg = f"part_tokens.{name}: there is no such part with an address of https"
                raise ValueError(msg)
        for name in self.each_address:
            if name not in self.parts:
                msg = f"each_address: there is no part {name!r}"
                raise ValueError(msg)
        if not self.is_local and self.tls is None and not self.insecure_listener:
            msg = (
                f"listen: {self.listen} is open to other machines and has no TLS: give the section"
                " `tls`, listen on 127.0.0.1, or ask for it by name: insecure_listener: true"
            )
            raise ValueError(msg)
        if not self.anybody_may_look and self.token_file is self.read_token_file is None:
            msg = "token_file: without it nobody may look, nor without read_token_file"
            raise ValueError(msg)
        self.access.access()
        return self


def find_config(
    path: Path | None, directory: Path | None, listen: str | None = None
) -> ConsoleConfig:
    """The configuration in a file, or that of what `penstock up` runs in a directory.

    Args:
        path: The file; None: a directory is looked into.
        directory: The launch's directory, if it is not one of the usual.
        listen: Address of the page, instead of the configured one.

    Raises:
        ConfigError: The file cannot be used.
        UnavailableError: Nothing runs there.
    """
    changes = {} if listen is None else {"listen": listen}
    if path is not None:
        return load_config(ConsoleConfig, path, env_prefix=PREFIX, changes=changes)
    places = [directory] if directory else [default_root(), Path(".work/demo")]
    for place in places:
        layout = Layout(place.absolute())
        running = read_running(layout)
        if running is None:
            continue
        parts = {name: url for name, url in running["parts"].items() if name != "console"}
        document = {"parts": parts, "logd": running.get("logd"), **changes}
        return check_document(
            ConsoleConfig, document | {"token_file": layout.console_token}, layout.running
        )
    raise UnavailableError(
        f"no penstock runs in {' or '.join(map(str, places))}",
        fix="start it with `penstock up`, name its directory with --dir, or the parts in --config",
    )
