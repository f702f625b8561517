"""Data, models, inner optimizers and schedules. Does not know that training is distributed.

In the order of a batch: ``documents`` (text), ``sharding`` (whose), ``stream`` and ``data``
(batches), ``models`` with ``gpt`` and ``mlp``, ``loss``, ``optimizers`` with ``muon`` and
``schedules``,
``evaluation``. The user's own parts come through ``targets``.
"""
