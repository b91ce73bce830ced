"""Configurations of other agents, rewritten as the collector's."""
