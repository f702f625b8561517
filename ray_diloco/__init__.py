"""Asynchronous DiLoCo training with nothing between the nodes but a Hugging Face repository."""
