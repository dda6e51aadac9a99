"""Compiles every kernel to machine code of an H100 or H200; needs Triton, but no GPU.

A process of its own, because under `TRITON_INTERPRET=1` kernels cannot be compiled. Exits with the compiler's message
when it refuses one: the interpreter knows none of Triton's typing rules.
"""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from specgrove_kernels import (
    kv_compaction_triton,
    kv_write_triton,
    paged_attention_triton,
    philox_triton,
    split_merge_triton,
    token_choice_triton,
    tree_walk_triton,
)

_TARGET = GPUTarget("cuda", 90, 32)


def compile_kernel(kernel: Any, types: str, **constants: Any) -> None:
    """`types` are those of the arguments that are no constants, in order; *T points to T."""
    given = iter(types.split())
    signature = {name: "constexpr" if name in constants else next(given) for name in kernel.arg_names}
    compile(ASTSource(fn=kernel, signature=signature, constexprs=constants), target=_TARGET)


def compile_attention(dtype: str, head_dim: int, padded_dim: int, keys: int, *, has_all: bool) -> None:
    """`has_all` is with window, cap and split."""
    outputs = "*fp32 *fp32" if has_all else f"*{dtype} *{dtype}"
    indices = "*i32 *i32 *i32 *i32 *i32 *i64 *i32 *i32 *i32 *i32"
    compile_kernel(
        paged_attention_triton._attend_tile,
        f"*{dtype} *{dtype} *{dtype} {outputs} {indices} i32 i32 i32 i32 i32 i32 i32 i32 fp32 fp32 i32",
        HAS_SOFTCAP=has_all,
        HAS_WINDOW=has_all,
        IS_SPLIT=has_all,
        UPCAST=False,
        NUM_HEADS=32,
        GROUP=4,
        TILE_ROWS=16,
        BLOCK_SIZE=16,
        HEAD_DIM=head_dim,
        LANES=64,
        KEYS=keys,
        DIM=padded_dim,
    )


if __name__ == "__main__":
    compile_attention("bf16", 128, 128, 64, has_all=False)
    compile_attention("fp16", 96, 128, 64, has_all=True)
    compile_attention("fp32", 80, 128, 32, has_all=True)
    compile_kernel(
        split_merge_triton._merge, "*fp32 *fp32 *bf16 *i32 i32 i32 i32", NUM_HEADS=32, HEAD_DIM=96, SPLITS=32, DIM=128
    )
    sizes = "i32 i32 i32 i32 i32 i32"
    for parts in ("*bf16 *bf16", "*fp32 *bf16"):
        compile_kernel(kv_write_triton._write_row, f"{parts} *bf16 *i64 {sizes}", WIDTH=240, HEAD_DIM=80, PADDED=256)
    compile_kernel(kv_compaction_triton._move_columns, "*bf16 *i64 *i64 *i32 i32", WIDTH=1040, COLUMNS=1024)
    compile_kernel(philox_triton._write_words, "*i64 *i64 *i64 i32 i32", GROUPS=256)
    compile_kernel(token_choice_triton._peak_of_chunk, "*fp32 *fp32 i32 i32 i32", CHUNK=1024)
    best = "*fp32 *fp32 *fp32 *i32 *fp32 *i64 *i64 i32 i32 i32 i32"
    compile_kernel(token_choice_triton._best_of_chunk, best, GROUPS=256, CHUNKS=128)
    compile_kernel(token_choice_triton._best_of_row, "*fp32 *i32 *i64 i32", CHUNKS=128)
    compile_kernel(tree_walk_triton._walk, "*i64 *i64 *i32 *i32 *i32 *i32 *i64 *i32 i32", NODES=256)
