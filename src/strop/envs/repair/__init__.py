"""Repair: a small coding agent's world. One wrong line in a short function, mended by free-text edits and judged by hidden
tests in the sandbox."""
