"""Operators for CPUs: loops over arrays, compiled for this machine's processor when they are first called."""
