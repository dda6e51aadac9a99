"""The gateway: what clients talk to. OpenAI-compatible HTTP and gRPC in front of a pool of verifiers. Torch-free."""
