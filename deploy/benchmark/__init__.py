"""What the way to a .sif and the start of a server cost, measured in turn in one run."""
