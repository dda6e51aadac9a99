"""Text and token ids: tokenizer, chat template, incremental detokenising, stop strings. Torch-free.

Gateway and verifier read one generation's tokens through the same `OutputText`, so both see a stop string end at the
same token.
"""

from specgrove.text.chat_template import ChatMessage, ChatTemplate
from specgrove.text.detokenizer import IncrementalDetokenizer
from specgrove.text.output_text import OutputText
from specgrove.text.stop_strings import StopMatch, StopStringMatcher
from specgrove.text.token_text import TokenText
from specgrove.text.tokenizer import Tokenizer

__all__ = [
    "ChatMessage",
    "ChatTemplate",
    "IncrementalDetokenizer",
    "OutputText",
    "StopMatch",
    "StopStringMatcher",
    "TokenText",
    "Tokenizer",
]
