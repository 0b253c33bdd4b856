"""Inference-only NuGraph networks in plain PyTorch: tensors in, tensors out, nothing learned."""
