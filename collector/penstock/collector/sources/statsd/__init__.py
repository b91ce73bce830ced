"""StatsD samples, aggregated between flushes."""
