"""The local hub: serves the Hub API to the unmodified huggingface_hub client."""
