"""Triton itself: which releases, where to get one, how to start it, what its failures mean."""
