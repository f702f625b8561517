"""The only door between nodes: one branch of one model repository.

`repository` is the seam; `client` speaks the Hub's API over `transport` and `door`, its errors
sorted by `faults`; `memory` keeps a repository in a dict over the pure `history`; `embedded` is
the run's own hub. `entrance` asks before a run whether one may come in, `connect` goes from
settings to a repository, `limits` says what is tried again and how often commits are sent.
"""
