"""Containers: what Kubernetes and Docker know of those whose logs are read."""
