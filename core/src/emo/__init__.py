"""EMO saves GPU energy without breaking latency targets."""

__version__ = "0.1.0"
