"""Generates containers/monitoring."""
