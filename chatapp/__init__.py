"""The product. Its version is the project's; a test holds them together."""

__version__ = "0.2.0.dev0"
