"""Weights kept as int8 with one scale a row: a quarter of the size on disk, float32 again as soon as they are read.

File `model.safetensors` of such a folder: a matrix `X.weight` is int8 and has a companion `X.weight_scale` (float16,
one a row): value = int8 * scale. A head that is the embedding but for its last row is written as that row alone,
`lm_head.last_row` [1, H]. Everything else is as ever. The config says so, for other readers to refuse it:
`quantization_config: {"quant_method": "specgrove-int8", "format": "int8-per-row"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from specgrove.errors import ModelLoadError

QUANT_METHOD = "specgrove-int8"
FORMAT = "int8-per-row"
QUANTIZATION_CONFIG = {"quant_method": QUANT_METHOD, "format": FORMAT}
SCALE_SUFFIX = "_scale"
FILE_NAME = "model.safetensors"
HEAD_NAME = "lm_head.weight"
LAST_HEAD_ROW = "lm_head.last_row"
_EMBEDDING_NAME = "model.embed_tokens.weight"
_MAX_INT8 = 127


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` (float [..., C]) as int8 [..., C] and a float16 scale [...] for each row.

    The largest value of a row becomes 127, so no value is off by more than half of `scale`. Raises ValueError for
    numbers that no float16 scale can hold.
    """
    wide = weight.detach().float()
    exact = wide.abs().amax(dim=-1) / _MAX_INT8
    nearest = exact.half()
    # Rounded up, so that nothing is cut off at 127; positive float16 numbers count like integers.
    scale = torch.where(nearest.float() < exact, (nearest.view(torch.int16) + 1).view(torch.float16), nearest)
    if not scale.isfinite().all():
        raise ValueError("the weight holds numbers that are not finite or too large for an int8 row with a scale")
    divisor = torch.where(scale > 0, scale.float(), 1.0).unsqueeze(-1)
    return (wide / divisor).round().to(torch.int8), scale


def dequantize_rows(steps: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 [..., C] from int8 [..., C] and the scales [...] of its rows."""
    return steps.float() * scale.float().unsqueeze(-1)


def is_int8_config(quantization_config: object) -> bool:
    """Whether a config's `quantization_config` names this format; raises `ModelLoadError` for a newer form of it."""
    if not isinstance(quantization_config, Mapping) or quantization_config.get("quant_method") != QUANT_METHOD:
        return False
    if quantization_config.get("format") != FORMAT:
        raise ModelLoadError(
            f"{QUANT_METHOD} weights of format {quantization_config.get('format')!r} cannot be read; "
            f"this version knows {FORMAT!r}"
        )
    return True


def read_int8_state(folder: Path) -> dict[str, torch.Tensor]:
    """The state dict in `folder`, int8 matrices as float32. Raises `ModelLoadError`."""
    source = str(folder / FILE_NAME)
    state = dequantized(read_tensors(folder / FILE_NAME), source)
    last_row = state.pop(LAST_HEAD_ROW, None)
    if last_row is not None:
        embedding = state.get(_EMBEDDING_NAME)
        if embedding is None or last_row.shape != embedding[-1:].shape:
            raise ModelLoadError(f"{source}: {LAST_HEAD_ROW} needs an embedding of the same width beside it")
        state[HEAD_NAME] = torch.cat([embedding[:-1].float(), last_row.float()])
    return state


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file; raises `ModelLoadError` when it is missing or broken."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"cannot load {path}: {error}") from error


def dequantized(tensors: Mapping[str, torch.Tensor], source: str) -> dict[str, torch.Tensor]:
    """`tensors` without scales, int8 ones multiplied by theirs; raises `ModelLoadError` where the two do not fit."""
    state = {}
    for name, tensor in tensors.items():
        owner = tensors.get(name.removesuffix(SCALE_SUFFIX)) if name.endswith(SCALE_SUFFIX) else None
        if owner is not None and owner.dtype == torch.int8:
            continue
        if tensor.dtype == torch.int8:
            scale = tensors.get(name + SCALE_SUFFIX)
            if scale is None or scale.shape != tensor.shape[:-1] or not scale.is_floating_point():
                raise ModelLoadError(
                    f"{source}: {name} is int8 and needs a float tensor {name + SCALE_SUFFIX} of shape "
                    f"{list(tensor.shape[:-1])}; write both with quantize_rows"
                )
            tensor = dequantize_rows(tensor, scale)
        state[name] = tensor
    return state
