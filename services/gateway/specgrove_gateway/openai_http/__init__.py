"""The OpenAI-compatible HTTP face: completions, chat completions, models, health and metrics."""
