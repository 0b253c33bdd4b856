"""The process beside each server: heals it, stops it, sweeps up after it."""
