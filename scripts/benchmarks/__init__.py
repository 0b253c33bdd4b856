"""Times the kit against what people serve today; ``scripts/benchmark*.py`` are its commands."""
