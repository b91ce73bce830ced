"""The graph: which transform takes whose records, checked and run; its output, its tests."""
