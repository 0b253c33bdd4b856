"""Formats that the kit, the sync agent and the models' runtime all read.

One reader and one writer each, of the standard library and numpy, which is imported only where
arrays are read: the packages that import this one share nothing else.
"""
