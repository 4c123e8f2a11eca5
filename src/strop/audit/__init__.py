"""Attacks on a verifier before it is trusted: probes by tier, and a report whose findings can be replayed."""
