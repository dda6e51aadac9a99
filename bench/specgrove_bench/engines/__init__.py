"""Other engines on the same prompts and weights: `transformers` in this process, llama.cpp and vLLM as servers."""
