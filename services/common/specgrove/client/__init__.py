"""A typed client of the gateway over gRPC, for threads (`Client`) and for event loops (`AsyncClient`). Torch-free."""

from specgrove.client.asynchronous import AsyncAnswerStream, AsyncClient
from specgrove.client.blocking import AnswerStream, Client
from specgrove.client.requests import GenerateOptions, Message
from specgrove.client.values import Answer, Chunk, Model, Tokens, Usage
from specgrove.outcome import FinishReason, SpeculationStats
from specgrove.sampling.params import SpeculationOptions
from specgrove.sampling.rules import Rule

__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncAnswerStream",
    "AsyncClient",
    "Chunk",
    "Client",
    "FinishReason",
    "GenerateOptions",
    "Message",
    "Model",
    "Rule",
    "SpeculationOptions",
    "SpeculationStats",
    "Tokens",
    "Usage",
]
