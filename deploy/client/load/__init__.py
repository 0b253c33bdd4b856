"""Loads a server in an open loop, and says what its clients got."""
