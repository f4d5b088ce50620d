"""What goes wrong with models. Each message is one line that says which model, why, and what to do about it."""

from __future__ import annotations


class ModelError(Exception):
    """A model that cannot be used."""


class NotNative(ModelError):
    """A model that the native decoder does not compute exactly; the message is the reason. transformers may run it."""
