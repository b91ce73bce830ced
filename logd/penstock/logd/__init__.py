"""The replicated log daemon, its commit log, its wire formats and its client."""
