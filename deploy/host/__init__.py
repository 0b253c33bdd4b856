"""This machine: files, processes, terminals, GPUs, and what is wrong when its programs fail."""
