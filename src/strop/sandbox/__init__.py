"""Where untrusted code runs: bubblewrap, limits, and a warm worker inside. Nothing is run outside of it."""
