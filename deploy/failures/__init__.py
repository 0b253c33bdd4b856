"""What Triton's, Docker's and Apptainer's words mean: pattern, cause, remedy, in one table.

:mod:`deploy.failures.table` holds the table and looks into it; the other modules hold its rows.
"""
