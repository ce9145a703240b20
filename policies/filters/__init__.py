"""Filters: which candidates may be used at all."""
