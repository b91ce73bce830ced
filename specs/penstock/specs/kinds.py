"""The five base specs; importing this module registers them."""

from typing import Final

from penstock.specs.audit import Audit
from penstock.specs.envelope import Record
from penstock.specs.event import Event
from penstock.specs.log_record import LogRecord
from penstock.specs.metric_point import MetricPoint
from penstock.specs.span_record import Span

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
