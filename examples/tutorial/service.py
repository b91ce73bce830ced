"""A small bookshop over HTTP; the marked lines are all that its telemetry needs."""

from examples.tutorial.telemetry import OrderPlaced  # 1
from fastapi import FastAPI

from penstock import specs  # 2

specs.setup("bookshop", version="1.0.0")  # 3
log = specs.log("bookshop")  # 4

app = FastAPI()
app.add_middleware(specs.AsgiMiddleware)  # 5


@app.post("/orders/{order_id}")
async def place_order(order_id: str, total: float, customer: str) -> dict[str, str]:
    """Take an order."""
    with specs.bind(user_id=customer):  # 6
        log.info("order received", total=total)  # 7
        if total <= 0:
            log.warning("order refused", reason="nothing to pay")  # 8
            return {"order": order_id, "state": "refused"}
        OrderPlaced(order_id=order_id, total=total).emit()  # 9
    return {"order": order_id, "state": "placed"}
