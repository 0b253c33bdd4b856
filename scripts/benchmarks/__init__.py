"""Times the kit beside what people serve today; ``scripts/benchmark*.py`` are its commands."""
