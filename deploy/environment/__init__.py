"""The only code that makes a Python: locks, interpreters, prefixes, packed archives.

What cannot be made is an ``EnvironmentSetupError`` that says why in one line.
"""
