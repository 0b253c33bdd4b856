"""Mirrors a published bucket into a folder that Triton polls.

It runs beside the server, in the interpreter of the image, with a client of S3 laid apart from the
models' packages. It never runs what it downloads, and never imports the kit.
"""
