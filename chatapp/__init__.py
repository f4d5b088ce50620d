"""The product. Its version is the project's; a test holds them together."""

__version__ = "0.1.0"
