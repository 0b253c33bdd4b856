"""What doctor checks; only its fixes change anything."""
