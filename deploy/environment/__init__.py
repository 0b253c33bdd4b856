"""The only code that makes a Python environment: locks, interpreters, prefixes, archives.

A failure raises an ``EnvironmentSetupError`` that says why in one line.
"""
