"""The account of records over all parts: what came in, what became of it, and what is missing.

`figures` reads the counters in the parts' statuses, `rows` balances them, `table` shows the rows,
`command` asks the parts for `penstock account`. The demo, `penstock status` and the console show
rows of the same kind.
"""
