"""The Elasticsearch and OpenSearch sink."""
