"""What the documentation's site is built from besides the pages in ``docs/``."""
