"""What the documentation site is built from besides the pages in ``docs/``."""
