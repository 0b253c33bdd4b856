"""Batch systems: what a job is, and how Slurm and HTCondor are asked to run it."""
