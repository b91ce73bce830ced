"""Metrics scraped from Prometheus exporters: discovery of targets, relabelling, scrapes."""
