"""Judges: text, programs, rubrics. Each returns a `Verdict`; what it cannot tell is invalid, never 0."""
