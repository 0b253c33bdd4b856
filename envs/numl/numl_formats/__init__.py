"""Formats that the kit, the sync agent and the models' runtime all read.

One reader each, of the standard library: the packages that import it share nothing else.
"""
