"""Data, models, inner optimizers and schedules. Does not know that training is distributed.

In the order of a batch: ``documents`` with ``shakespeare`` (text), ``sharding`` (whose), ``stream``
and ``data`` (batches), ``digits`` (images), ``hf_data`` (datasets); ``models`` with ``gpt``,
``mlp``, ``images`` and ``hf_model``; ``loss``, ``optimizers`` with ``eager`` and ``muon``,
``schedules``, ``evaluation``. The user's own parts come through ``targets``, optional packages
through ``extras``.
``settings`` are checked each alone, by ``fitting`` together.
"""
