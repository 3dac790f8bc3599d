"""The version of framedex."""

__version__ = "0.1.0"
