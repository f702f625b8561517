"""A node: trainer, coordinator (decides, without I/O), lanes, and the loop around them."""
