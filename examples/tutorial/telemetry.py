"""The bookshop's own event, as its team first published it."""

from typing import Annotated

from pydantic import Field

from penstock import specs


class OrderPlaced(specs.Event, spec="bookshop.order_placed/1.0"):
    """An order was paid for."""

    order_id: str
    total: Annotated[float, Field(ge=0)]
