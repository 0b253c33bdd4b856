"""What Triton reads: repositories, configurations, commands, releases. Starts no processes."""
