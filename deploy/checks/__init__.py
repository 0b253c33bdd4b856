"""What doctor looks at; changes something only in its fixes."""
