"""What parts of the collector are given of its configuration."""

import socket
from typing import Any

from penstock.collector.admission import Admit, admission, scrubber_of
from penstock.collector.config import CollectorConfig
from penstock.collector.core.batch import Limits
from penstock.collector.opening import Sizes


def limits_of(config: CollectorConfig) -> Limits:
    """Of delivery."""
    return Limits(
        batch_bytes_max=config.batch.bytes_max,
        batch_records_max=config.batch.records_max,
        batch_age_ns=config.batch.age_ms * 1_000_000,
    )


def sizes_of(config: CollectorConfig) -> Sizes:
    """Of the journals."""
    spool = config.spool
    return Sizes(spool.bytes_max, spool.urgent_bytes_max, config.quarantine.bytes_max)


def resource_of(config: CollectorConfig) -> dict[str, Any]:
    """Of records that come without one."""
    return {"host.name": socket.gethostname(), **config.resource}


def admission_of(config: CollectorConfig) -> Admit:
    """The gate."""
    return admission(config.subject_prefix, scrubber_of(config.sensitive))
