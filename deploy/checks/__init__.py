"""What may be wrong with a host, an installation or a deployment: looked at, told, mended.

A check looks at one thing and returns findings; it changes nothing. ``doctor`` runs all of them,
``up`` those that would have its launch fail, before it makes anything.
"""
