"""Model states as tensors: schema, snapshots, pseudo-gradients, streaming safetensors."""
