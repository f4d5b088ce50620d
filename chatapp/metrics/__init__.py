"""What the product's processes say to Prometheus, all of it at /metrics of the web. Not an app: it owns no rows."""
