"""A server beside a job's command: what ``numlkit exec`` and the ``exec`` of an image share.

Standard library only. The image has it as one file, which any Python from 3.9 on runs.
"""
