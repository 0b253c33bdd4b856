"""Publishes what was built and verified to where servers on other hosts get it from."""
