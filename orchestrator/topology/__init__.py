"""The topology: its schema, its loading with positions, its lint, and the plan made from it."""
