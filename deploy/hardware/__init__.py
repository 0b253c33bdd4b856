"""What this host has to compute with: NVIDIA GPUs, and which of them a launch uses."""
