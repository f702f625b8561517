"""Who runs where: engines, placement, preflight, supervision."""
