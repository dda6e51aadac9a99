"""An SSM that goes on from a finished one: more text, more time, or another vocabulary of the same target.

layers, norm, maps    taken as they are (int8 and float16 folders alike)
tables                rows of the target's tokens that both vocabularies hold; others stay the target's own
"any other token"     the head's last row, taken as it is
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specgrove.errors import ModelLoadError
from specgrove.runtime.draft_vocab import FILE_NAME as VOCAB_FILE
from specgrove.runtime.int8_weights import FILE_NAME as MODEL_FILE
from specgrove.runtime.int8_weights import HEAD_NAME, LAST_HEAD_ROW, dequantized, read_int8_state, read_tensors
from specgrove_drafter.members.feature_maps import FILE_NAME as MAPS_FILE
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.errors import SettingsError
from specgrove_drafter.tuning.vocabulary import DraftVocabulary

_EMBEDDING = "model.embed_tokens.weight"
_MAPS = ("token_map", "state_maps", "feature_maps")
_HEAD_ROWS = "head_rows"


def fingerprint(folder: Path) -> str:
    """Eight hex digits that name the weights in `folder`; raises SettingsError where they cannot be read."""
    digest = hashlib.sha256()
    for name in (MODEL_FILE, MAPS_FILE, VOCAB_FILE):
        try:
            digest.update((folder / name).read_bytes())
        except OSError as error:
            raise SettingsError(
                [f"--start-from: {folder} needs {name}; name a folder that specgrove-tune wrote ({error.strerror})"]
            ) from error
    return digest.hexdigest()[:8]


@torch.no_grad()
def start_from(ssm: Any, folder: Path, vocabulary: DraftVocabulary) -> None:
    """Load the exported SSM in `folder` into `ssm` (as `build_ssm` makes it, in place), whose draft ids are
    `vocabulary`'s. Raises SettingsError where the two have not the same shape."""
    try:
        tensors = _read(folder)
        known = DraftVocabulary.from_offsets(
            read_tensors(folder / VOCAB_FILE)["d2t"].long(), vocabulary.target_vocab_size
        )
    except (ModelLoadError, KeyError, ValueError) as error:
        raise SettingsError([f"--start-from: {folder} cannot be read as an SSM of this target: {error}"]) from error
    state = ssm.state_dict()
    head: DepthHead = ssm.lm_head
    wanted = {name: tensors.get(name) for name in state if not name.startswith("lm_head.") and name != _EMBEDDING}
    wanted |= {f"lm_head.{name}": tensors.get(name) for name in _MAPS}
    unfit = [name for name, value in wanted.items() if value is None or value.shape != state[name].shape]
    hidden_size = ssm.config.hidden_size
    if unfit or any(tensors[name].shape != (known.size, hidden_size) for name in (_EMBEDDING, _HEAD_ROWS)):
        shape = f"{ssm.config.num_hidden_layers} layers and {head.num_depths} depths"
        raise SettingsError([f"--start-from: {folder} has not the shape that is asked for ({shape}: {unfit[:3]})"])
    wanted[_EMBEDDING] = _carried(state[_EMBEDDING], tensors[_EMBEDDING], known, vocabulary)
    table = _carried(head.table, tensors[_HEAD_ROWS], known, vocabulary)
    wanted["lm_head.rows"], wanted["lm_head.other"] = table[:-1], table[-1:]
    ssm.load_state_dict({name: value for name, value in wanted.items() if value is not None})


def _read(folder: Path) -> dict[str, Tensor]:
    """Everything that an exported folder holds, float32, under the names of an ordinary model and of `_MAPS`."""
    maps = dequantized(read_tensors(folder / MAPS_FILE), str(folder / MAPS_FILE))
    written = read_tensors(folder / MODEL_FILE)
    is_int8 = "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    state = read_int8_state(folder) if is_int8 or LAST_HEAD_ROW in written else written
    # In int8 the head is the one that the maps lead into; in float16 it is multiplied out, and that one lies beside it.
    head = state.pop(HEAD_NAME) if _HEAD_ROWS not in maps else maps[_HEAD_ROWS]
    return {name: tensor.float() for name, tensor in (state | maps | {_HEAD_ROWS: head}).items()}


def _carried(own: Tensor, found: Tensor, known: DraftVocabulary, vocabulary: DraftVocabulary) -> Tensor:
    """`own` [V, H] with the rows that `found` [V', H] has for the same tokens, and its row for all others."""
    carried = own.detach().clone()
    places = known.to_draft()[vocabulary.target_ids]
    is_known = places != known.other_id
    carried[:-1][is_known] = found[places[is_known]].to(carried)
    carried[-1] = found[-1].to(carried)
    return carried
