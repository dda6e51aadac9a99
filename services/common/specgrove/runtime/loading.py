"""From a folder, hub id or GGUF file to a model that runs packed rows.

`weights` says how the matrices are kept: `float32` as they are, `fp16_packed` for fbgemm on CPUs (four times the speed
at one row on AVX2), `int8_packed` rounded to 8 bits a row, which loses nothing where they are stored that way. `auto`
is fp16_packed on CPUs that have it, int8_packed for int8 checkpoints on CPUs with VNNI, and the checkpoint's own type
on accelerators.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
from torch import nn

from specgrove.errors import ModelLoadError
from specgrove.runtime import hf
from specgrove.runtime.attention import PackedStep, packed_tree_attention
from specgrove.runtime.attention_choice import AttentionChoice, GraphChoice, choose_attention, has_windows
from specgrove.runtime.convert import cached_folder, convert
from specgrove.runtime.decoder import Decoder, ModuleDecoder, StateReader
from specgrove.runtime.draft_vocab import OTHER_ID_KEY, DraftVocab
from specgrove.runtime.int8_linear import Int8Linear, is_int8_supported
from specgrove.runtime.int8_weights import is_int8_config
from specgrove.runtime.kv_cache import KVCache, KVShape
from specgrove.runtime.kv_moves import PendingMoves
from specgrove.runtime.lean_decoder import LeanDecoder
from specgrove.runtime.packed_linear import PackedLinear, PackWeight, is_packing_supported, pack_linear_layers
from specgrove.runtime.paged_rows import PagedAttention
from specgrove.runtime.probe import check_attention
from specgrove.runtime.state_tap import RewriteStates, StateTap
from specgrove_kernels.cpu import compiled

_log = logging.getLogger(__name__)
_KNOWN_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


class Weights(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    FP16_PACKED = "fp16_packed"
    INT8_PACKED = "int8_packed"


class DecoderChoice(StrEnum):
    """Who runs the model: `lean` (Llama-shaped models only), its own `transformers` code, or lean where it can."""

    AUTO = "auto"
    LEAN = "lean"
    TRANSFORMERS = "transformers"


class CpuKernelChoice(StrEnum):
    """Whether small operators on CPUs are compiled (`specgrove_kernels.cpu`) where they can be, or torch's own."""

    AUTO = "auto"
    OFF = "off"


_PACKS: dict[str, PackWeight] = {
    Weights.FP16_PACKED: PackedLinear.from_weight,
    Weights.INT8_PACKED: Int8Linear.from_weight,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A frozen model with our attention, and what the services must know of it.

    Several models stacked by `stack` are one LoadedModel: `model` is the first, logits stand side by side.
    """

    model: nn.Module
    decoder: Decoder
    source: str
    weights: str  # what `auto` became: float32, fp16_packed, bfloat16, ...
    vocab_size: int
    max_context_len: int
    kv_shape: KVShape
    hidden_size: int
    device: torch.device
    draft_vocab: DraftVocab | None = None
    has_windows: bool = True  # whether a layer may see a sliding window only
    paged: PagedAttention | None = None  # how it attends through the paged kernels; None for the reference

    def new_cache(self, *, max_tokens: int, block_size: int = 16) -> KVCache:
        """An empty KV cache for `max_tokens` tokens over all sequences (rounded up to whole blocks)."""
        num_blocks = -(-max_tokens // block_size)
        cache = KVCache(self.kv_shape, num_blocks=num_blocks, block_size=block_size, device=self.device)
        if self.paged is not None:
            cache.moves = PendingMoves(cache.storage, self.paged.kernels.compact_kv)
        return cache

    @property
    def pack(self) -> PackWeight | None:
        """How this model's matrices are packed; None where they are as they were."""
        return _PACKS.get(self.weights)

    @property
    def may_compile(self) -> bool:
        """Whether what goes with this model may be compiled loops too."""
        return self.device.type == "cpu" and isinstance(self.decoder, LeanDecoder) and self.decoder.may_compile

    def replace_head(self, weight: torch.Tensor) -> None:
        """Read states with `weight` (float [V, H]) from here on, kept as the other matrices are."""
        if self.pack is not None:
            head: nn.Module = self.pack(weight, None)
        else:
            head = nn.Linear(
                weight.shape[1], weight.shape[0], bias=False, device=self.device, dtype=self.kv_shape.dtype
            )
            head.requires_grad_(False).weight.copy_(weight)
        self.model.set_output_embeddings(head)  # type: ignore[operator]
        if isinstance(self.decoder, LeanDecoder):
            self.decoder.forget_heads()

    def state_tap(self) -> StateReader:
        """Where this model's inner states can be read; raises `ModelLoadError` where its architecture hides them."""
        if isinstance(self.decoder, LeanDecoder):
            return self.decoder
        return StateTap.find(self.model, self.kv_shape.num_layers)

    def logits(
        self,
        token_ids: torch.Tensor,  # int64 [1, N]
        positions: torch.Tensor,  # int64 [1, N]
        wanted: torch.Tensor,  # int64 [W], packed rows
        step: PackedStep,
        before_head: RewriteStates | None = None,
    ) -> torch.Tensor:  # float32 [W, K * V], K = 1 unless models are stacked
        """One forward; see `decoder.Decoder`."""
        return self.decoder.logits(token_ids, positions, wanted, step, before_head)


def load_model(
    source: str | Path,
    weights: str = Weights.AUTO,
    device: str = "cpu",
    *,
    target_vocab_size: int | None = None,
    cache_root: Path | None = None,
    decoder: str = DecoderChoice.AUTO,
    attention: str = AttentionChoice.AUTO,
    cuda_graphs: str = GraphChoice.AUTO,
    cpu_kernels: str = CpuKernelChoice.AUTO,
) -> LoadedModel:
    """Load a decoder-only model and check that our attention computes what its own does.

    `target_vocab_size` is needed for SSMs with a trimmed vocabulary; `cache_root` is where GGUF files are converted to;
    `decoder` is a `DecoderChoice`, `attention` an `AttentionChoice`, `cuda_graphs` a `GraphChoice`,
    `cpu_kernels` a `CpuKernelChoice`. Raises `ModelLoadError`.
    """
    hf.register_attention(packed_tree_attention)
    folder = model_folder(str(source), cache_root)
    config = hf.read_config(folder).get_text_config(decoder=True)
    _check_layers(folder, config)
    is_int8 = is_int8_config(getattr(config, "quantization_config", None))
    kept_as = _resolve(Weights(weights), torch.device(device), is_int8=is_int8)
    model = hf.load_causal_lm(folder, dtype=None if kept_as == "checkpoint" else torch.float32)
    pack = _PACKS.get(kept_as)
    if pack is not None:
        pack_linear_layers(model, pack)
    model.to(device)
    dtype = next(model.parameters()).dtype
    loaded = LoadedModel(
        model=model,
        decoder=_decoder(model, DecoderChoice(decoder), CpuKernelChoice(cpu_kernels), folder),
        source=str(source),
        weights=str(dtype).removeprefix("torch.") if kept_as == "checkpoint" else str(kept_as),
        vocab_size=config.vocab_size,
        max_context_len=_context_len(config),
        kv_shape=_kv_shape(config, dtype),
        hidden_size=config.hidden_size,
        device=torch.device(device),
        draft_vocab=_draft_vocab(folder, config, target_vocab_size),
        has_windows=has_windows(config),
        paged=choose_attention(
            AttentionChoice(attention), GraphChoice(cuda_graphs), model, config, torch.device(device), str(source)
        ),
    )
    check_attention(loaded)
    _log.info(
        "loaded %s, weights=%s, vocabulary %d, %s, attention=%s",
        source,
        loaded.weights,
        loaded.vocab_size,
        type(loaded.decoder).__name__,
        AttentionChoice.REFERENCE if loaded.paged is None else AttentionChoice.TRITON,
    )
    return loaded


def stack(models: Sequence[LoadedModel]) -> LoadedModel | None:
    """Models of one shape and one draft vocabulary as one that runs them all in one forward; None for others.

    Packed weights and heads are shared with `models` (replace heads first); others are laid side by side in a copy.
    """
    first = models[0]
    if len({(str(loaded.device), loaded.weights) for loaded in models}) > 1:
        return None
    if not all(_same_vocab(first.draft_vocab, loaded.draft_vocab) for loaded in models):
        return None
    may_compile = all(isinstance(one.decoder, LeanDecoder) and one.decoder.may_compile for one in models)
    decoder = LeanDecoder.of([loaded.model for loaded in models], may_compile=may_compile)
    if decoder is None:
        return None
    shape = replace(first.kv_shape, num_kv_heads=len(models) * first.kv_shape.num_kv_heads)
    return replace(first, decoder=decoder, kv_shape=shape, source="+".join(loaded.source for loaded in models))


def _same_vocab(one: DraftVocab | None, other: DraftVocab | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.other_id == other.other_id and torch.equal(one.to_target, other.to_target)


def _decoder(model: nn.Module, choice: DecoderChoice, kernels: CpuKernelChoice, folder: str) -> Decoder:
    may_compile = kernels == CpuKernelChoice.AUTO and compiled.is_available()
    lean = None if choice == DecoderChoice.TRANSFORMERS else LeanDecoder.of([model], may_compile=may_compile)
    if lean is None and choice == DecoderChoice.LEAN:
        raise ModelLoadError(f"{folder} is not Llama-shaped; choose decoder=auto or transformers")
    return lean or ModuleDecoder(model)


def model_folder(source: str, cache_root: Path | None = None) -> str:
    """The local folder of `source`: a GGUF file is converted once, a hub id is fetched, a folder is itself."""
    if not source.endswith(".gguf"):
        return source if Path(source).is_dir() else hf.fetch(source)
    gguf = Path(source)
    if not gguf.is_file():
        raise ModelLoadError(f"no GGUF file at {gguf}")
    root = cache_root or Path.home() / ".cache" / "specgrove" / "models"
    return str(convert(gguf, cached_folder(gguf, root), _log.info))


def _resolve(weights: Weights, device: torch.device, *, is_int8: bool) -> str:
    if weights == Weights.FP16_PACKED and (device.type != "cpu" or not is_packing_supported()):
        raise ModelLoadError("weights=fp16_packed needs a CPU with fbgemm (x86); choose float32 or auto")
    if weights == Weights.INT8_PACKED and (device.type != "cpu" or not is_int8_supported()):
        raise ModelLoadError("weights=int8_packed needs a CPU with AVX512 VNNI and fbgemm; choose fp16_packed or auto")
    if weights == Weights.AUTO:
        if device.type != "cpu":
            return "checkpoint"
        if is_int8 and is_int8_supported():
            return Weights.INT8_PACKED
        return Weights.FP16_PACKED if is_packing_supported() else Weights.FLOAT32
    return weights


def _check_layers(folder: str, config: object) -> None:
    """Refuse layers whose difference a short comparison at load time cannot show (a window longer than it, say)."""
    unknown = set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYER_TYPES
    if unknown:
        raise ModelLoadError(f"{folder} has layers of a kind that is not supported: {', '.join(sorted(unknown))}")


def _context_len(config: object) -> int:
    context_len = getattr(config, "max_position_embeddings", None)
    if not context_len:
        raise ModelLoadError("the config names no max_position_embeddings; models without positions are not supported")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Past the original length this rotation changes for the whole batch: a row would depend on its neighbours.
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", context_len
        )
        return min(context_len, original)
    return context_len


def _kv_shape(config: object, dtype: torch.dtype) -> KVShape:
    num_heads = getattr(config, "num_attention_heads", None)
    hidden_size = getattr(config, "hidden_size", None)
    num_layers = getattr(config, "num_hidden_layers", None)
    if not num_heads or not hidden_size or not num_layers:
        raise ModelLoadError("the config names no num_attention_heads, hidden_size or num_hidden_layers")
    return KVShape(
        num_layers=num_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or hidden_size // num_heads,
        dtype=dtype,
    )


def _draft_vocab(folder: str, config: object, target_vocab_size: int | None) -> DraftVocab | None:
    path = Path(folder)
    if not (path / "draft_vocab.safetensors").is_file():
        return None
    if target_vocab_size is None:
        raise ModelLoadError(f"{folder} has a trimmed vocabulary; it can only be loaded as the SSM of a target")
    return DraftVocab.load(path, target_vocab_size, getattr(config, OTHER_ID_KEY, None))
