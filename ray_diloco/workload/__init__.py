"""Data, models, inner optimizers and schedules. Does not know that training is distributed."""
