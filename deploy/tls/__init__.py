"""Certificates: what is in one, and whether files of them can be used."""
