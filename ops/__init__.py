"""Set-up, the supervisor and the embedded Redis: what `make run` needs around the product."""
