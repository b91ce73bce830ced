"""The data source: streams of a logd by offset, as Spark's tasks read them."""
