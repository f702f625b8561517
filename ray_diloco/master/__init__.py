"""The master: validates, aggregates, takes the outer step, publishes."""
