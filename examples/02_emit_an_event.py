"""Define an event of your own: its fields are checked where it is made.

Its own fields travel as attributes named after its namespace. Printed, shortened:

    {"schema":"shop.order_placed/1.0","kind":"event",…,"attributes":{"shop.order_id":"o-1",…},…}
"""

from typing import Annotated

from pydantic import Field, ValidationError

from penstock import specs


class OrderPlaced(specs.Event, spec="shop.order_placed/1.0"):
    """An order was paid for."""

    order_id: str
    total: Annotated[float, Field(ge=0)]


specs.setup("checkout", version="1.0.0", environment="example")
OrderPlaced(order_id="o-1", total=24.5).emit()

try:
    OrderPlaced(order_id="o-2", total=-1.0)
except ValidationError as error:
    specs.log().warning("a negative total is refused", errors=error.error_count())
