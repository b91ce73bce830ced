"""A later version: a field that may be absent can be added in a minor version."""

from typing import Annotated

from pydantic import Field

from penstock import specs


class OrderPlaced(specs.Event, spec="bookshop.order_placed/1.1"):
    """An order was paid for."""

    order_id: str
    total: Annotated[float, Field(ge=0)]
    coupon: str | None = None
