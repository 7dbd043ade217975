"""The service and its page."""
