"""The execution environment: made from a lock, checked before it is used."""
