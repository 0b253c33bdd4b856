"""What was built and verified, brought to where servers of other hosts take it from."""
