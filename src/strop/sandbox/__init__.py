"""Where untrusted code runs: bubblewrap, limits, and a warm worker inside. Nothing is run outside of it."""

from strop.sandbox.bubblewrap import Bubblewrap, shared

__all__ = ["Bubblewrap", "shared"]
