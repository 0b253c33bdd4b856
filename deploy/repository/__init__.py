"""The model repository: its configuration files, and the copy staged for a launch."""
