"""Time per token over the real services: speculation off, a chain, trees, and `transformers` beside them."""
