"""The five base specs, and spec classes of installed packages; importing this registers the five.

A package makes its specs known by an entry point:

    [project.entry-points."penstock.specs"]
    shop = "shop.telemetry"

The collector and the command line load them. An application imports what it emits.
"""

import logging
from functools import cache
from importlib.metadata import entry_points
from typing import Final

from penstock.specs.models.audit import Audit
from penstock.specs.models.envelope import Record
from penstock.specs.models.event import Event
from penstock.specs.models.log import LogRecord
from penstock.specs.models.metric import MetricPoint
from penstock.specs.models.span import Span

BASE_MODELS: Final[dict[str, type[Record]]] = {
    "log": LogRecord,
    "span": Span,
    "metric": MetricPoint,
    "event": Event,
    "audit": Audit,
}


def _requirements(model: type[Record]) -> dict[str, bool]:
    return {field.alias or name: field.is_required() for name, field in model.model_fields.items()}


WIRE_REQUIRED: Final = {
    kind: frozenset(
        {key for key, required in _requirements(model).items() if required}
        | {"schema", "kind", "time_unix_nano", "resource"}
        | ({"record_id", "event_name"} if issubclass(model, (Event, Audit)) else set())
        | ({"name"} if issubclass(model, MetricPoint) else set())
    )
    for kind, model in BASE_MODELS.items()
}
"""Keys that stand on every stored line of a kind, those too that a model fills in by itself."""


GROUP: Final = "penstock.specs"
_LOGGER: Final = logging.getLogger("penstock.specs")


@cache
def discover() -> dict[str, str]:
    """Import every module of the entry-point group, once in a process.

    Returns:
        For each entry point that could not be loaded, why. It is logged, and the others load:
        records of its specs are then validated by the base of their kind.
    """
    failures = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()
        except Exception as error:
            failures[entry.name] = f"{entry.value}: {type(error).__name__}: {error}"
            _LOGGER.exception("specs of entry point %s cannot be loaded", entry.name)
    return failures
