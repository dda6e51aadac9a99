"""Tuning: makes a small speculative model (SSM) for a target out of the target's own words. See README.md here."""
