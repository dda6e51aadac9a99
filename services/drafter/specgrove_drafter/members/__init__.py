"""The ensemble's members: SSMs over the model runtime, prompt lookup, and a deliberately bad one for tests."""
