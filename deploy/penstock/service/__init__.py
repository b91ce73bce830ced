"""The frame of every Penstock process: configuration, exit codes, logs, health, signals.

A leaf package: it imports nothing else of Penstock's and knows no component. `penstock.specs`
does not use it, so that applications install pydantic alone (docs/decisions/0001).

The modules are imported as their names are asked for: a command that only prints its help does
without all of them.
"""

from typing import TYPE_CHECKING

from penstock.base.lazy_module import lazy_names
from penstock.service.notify import notify, notify_reloading
from penstock.service.release import release

if TYPE_CHECKING:
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
    from penstock.service.process import (
        LoopFailures,
        raise_open_files,
        run_until_stopped,
    )
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
    "Stage",
    "Status",
    "Tracing",
    "TracingSection",
    "UnavailableError",
    "absolute",
    "admin_server",
    "ask_admin",
    "check_only",
    "configure_logs",
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

if not TYPE_CHECKING:  # else a type checker would take any name for one of these
    __getattr__ = lazy_names(
        __name__,
        "penstock",
        {
            "base.errors": "ConfigError ExitCode ServiceError UnavailableError",
            "service.admin": "Action AdminServer Authorization Health Requester Stage Status",
            "service.admin_access": "AdminAccess AdminStatusError admin_server ask_admin",
            "service.config": "HostPort HostPorts check_only load_config show_config",
            "service.config_errors": "naming_known_keys",
            "service.config_types": "FilePath NoNul Quantities SocketPath absolute",
            "service.logs": "configure_logs",
            "service.process": "LoopFailures raise_open_files run_until_stopped",
            "service.tracing": "Tracing TracingSection span_metrics",
        },
    )
