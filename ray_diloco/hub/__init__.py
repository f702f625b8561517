"""The only door between nodes: one branch of one model repository."""
