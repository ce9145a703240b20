"""The router: one life per request in front of many engines, and the control side that keeps it informed."""
