"""What containers/monitoring is made by."""
