"""What crosses the hub: terms, paths, cards, ledger, ranges of local steps, and the seam to
time. Pure.
"""
