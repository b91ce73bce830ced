"""Prometheus's formats: exposition in text and in protobuf, and native histograms."""
