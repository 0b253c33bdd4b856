"""The only code that writes ``dist/``: images, ``.sif`` files and their manifests.

What cannot be built raises a ``BuildError`` that says why in one line.
"""
