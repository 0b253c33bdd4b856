"""The only code that makes a Python environment: locks, interpreters, prefixes, archives.

What cannot be made raises an ``EnvironmentSetupError`` that says why in one line.
"""
