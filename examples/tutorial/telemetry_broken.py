"""What must not happen: the same name and major version, and another type."""

from penstock import specs


class OrderPlaced(specs.Event, spec="bookshop.order_placed/1.2"):
    """An order was paid for."""

    order_id: str
    total: str
    coupon: str | None = None
