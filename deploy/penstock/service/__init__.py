"""How every Penstock process is run: configuration, exit codes, logs, health, signals.

A leaf package: it imports nothing else of Penstock's and knows no component. `penstock.specs`
does not use it, so that applications install pydantic alone (docs/decisions/0001).
"""

from penstock.base.errors import ConfigError, ExitCode, ServiceError, UnavailableError
from penstock.service.admin import (
    Action,
    AdminServer,
    Authorization,
    Health,
    Requester,
    Stage,
    Status,
)
from penstock.service.admin_access import AdminAccess, AdminStatusError, admin_server, ask_admin
from penstock.service.config import (
    HostPort,
    HostPorts,
    check_only,
    load_config,
    show_config,
)
from penstock.service.config_errors import naming_known_keys
from penstock.service.config_types import FilePath, NoNul, Quantities, SocketPath, absolute
from penstock.service.logs import configure_logs
from penstock.service.notify import notify, notify_reloading
from penstock.service.process import (
    LoopFailures,
    exit_on_error,
    raise_open_files,
    run_until_stopped,
)
from penstock.service.release import release
from penstock.service.tracing import Tracing, TracingSection, span_metrics

__all__ = [
    "Action",
    "AdminAccess",
    "AdminServer",
    "AdminStatusError",
    "Authorization",
    "ConfigError",
    "ExitCode",
    "FilePath",
    "Health",
    "HostPort",
    "HostPorts",
    "LoopFailures",
    "NoNul",
    "Quantities",
    "Requester",
    "ServiceError",
    "SocketPath",
    "Span",
    "Stage",
    "Status",
    "Tracer",
    "Tracing",
    "TracingSection",
    "UnavailableError",
    "absolute",
    "admin_server",
    "ask_admin",
    "check_only",
    "configure_logs",
    "exit_on_error",
    "load_config",
    "naming_known_keys",
    "notify",
    "notify_reloading",
    "raise_open_files",
    "release",
    "run_until_stopped",
    "show_config",
    "span_metrics",
]
