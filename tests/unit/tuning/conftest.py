"""A tiny random Llama with a byte tokenizer and a chat template, as a folder on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specgrove_drafter.tuning.hub import Target, load_target_model, open_target, quiet_hub
from specgrove_drafter.tuning.shards import NUM_TOP, Document, Role
from specgrove_drafter.tuning.ssm import build_ssm
from specgrove_drafter.tuning.vocabulary import DraftVocabulary
from support.tuning import NUM_FEATURES

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, VOCABULARY = 32, 259


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with a chat template."""
    return write_target(tmp_path_factory.mktemp("target"), transformers.LlamaConfig, CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def base_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2, whose projections have biases, without a chat template."""
    return write_target(tmp_path_factory.mktemp("base"), transformers.Qwen2Config, None)


def write_target(folder: Path, config_class: type[Any], chat_template: str | None) -> Path:
    quiet_hub()
    alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_only = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        unk_token="<|endoftext|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=chat_template,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = config_class(
        vocab_size=len(alphabet),
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=2,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def target(target_folder: Path) -> Target:
    return open_target(str(target_folder))


@pytest.fixture
def make_document() -> Callable[[int, int], Document]:
    """Makes documents whose law at every position is a random one over the whole vocabulary."""

    def make(document_id: int, length: int) -> Document:
        noise = torch.Generator().manual_seed(document_id)
        law = (3 * torch.randn(length, VOCABULARY, generator=noise)).log_softmax(-1).topk(NUM_TOP)
        return Document(
            document_id=document_id,
            tokens=torch.randint(3, VOCABULARY, (length,), generator=noise).int(),
            roles=torch.full((length,), Role.ANSWER, dtype=torch.uint8),
            top_ids=law.indices.int(),
            top_logprobs=law.values.half(),
            states=torch.randn(length, HIDDEN, generator=noise).half(),
            features=torch.randn(length, 2 * HIDDEN, generator=noise).half(),
        )

    return make


@pytest.fixture
def vocabulary() -> DraftVocabulary:
    return DraftVocabulary(torch.arange(0, VOCABULARY, 2), VOCABULARY)  # every other token: 130 kept, 129 outside


@pytest.fixture
def ssm(target: Target, vocabulary: DraftVocabulary) -> Any:
    """Two layers of the tiny target with an unfitted head for two depths."""
    model = load_target_model(target, torch.device("cpu"), pack=False)
    return build_ssm(model, vocabulary, 2, {"eos_token_id": 1}, num_depths=2, num_features=NUM_FEATURES)
