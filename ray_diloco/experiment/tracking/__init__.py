"""A run's curves in the services that people keep their experiments in: each a package of its own,
which none but its users need.
"""
