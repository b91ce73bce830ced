"""What a consumer needs of a spec, so that its producer hears before taking it away.

The consumer states its needs as a small model and commits what `contract` makes of it to the
producer's registry, as ``contracts/<consumer>.json``:

    class Billing(View, of="shop.order_placed", major=1):
        order_id: str
        total: float

Fields are named as in the spec; a nested need (``context``) is a model of its own. A field without
a default must stand on every record.
"""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from penstock.specs.errors import RefusedSpecError
from penstock.specs.evolution import Break, Schema, unreadable


class View(BaseModel):
    """The fields of a spec that a consumer reads."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    of: ClassVar[str]
    major: ClassVar[int]

    @override
    def __init_subclass__(cls, *, of: str, major: int, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.of, cls.major = of, major

    @classmethod
    def contract(cls, consumer: str) -> dict[str, Any]:
        """What the producer's registry keeps."""
        schema = cls.model_json_schema(by_alias=True)
        return {"consumer": consumer, "of": cls.of, "major": cls.major, "needs": schema}


def unmet(contract: dict[str, Any], spec: Schema) -> list[Break]:
    """The needs that records of a spec's schema do not fill.

    Raises:
        RefusedSpecError: It is no contract.
    """
    needs = contract.get("needs")
    if not isinstance(needs, dict) or "properties" not in needs:
        raise RefusedSpecError("a contract has consumer, of, major and needs (a JSON Schema)")
    return unreadable(spec, needs)
