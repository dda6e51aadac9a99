"""SSMs as they come from disk, with what feeds them, and which of them can run as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specgrove.features import FeatureLayout
from specgrove.runtime.attention_choice import AttentionChoice, GraphChoice
from specgrove.runtime.loading import CpuKernelChoice, LoadedModel, Weights, load_model, stack
from specgrove.runtime.packed_linear import PackedLinear
from specgrove_drafter.members.feature_feed import FeatureFeed, JointFeed
from specgrove_drafter.members.feature_maps import FeatureMaps
from specgrove_drafter.metrics import DrafterMetrics


@dataclass(frozen=True, slots=True)
class LoadedSsm:
    """One SSM under the name it is counted by; `feed` is None for one that sees tokens only."""

    name: str
    loaded: LoadedModel
    feed: FeatureFeed | None = None
    max_fed_depth: int = 0  # down to which draft depth it sees the target's features


def load_ssm(
    name: str,
    folder: str,
    weights: str,
    device: str,
    target_vocab_size: int,
    sent: FeatureLayout,
    metrics: DrafterMetrics | None = None,
    *,
    attention: str = AttentionChoice.AUTO,
    cuda_graphs: str = GraphChoice.AUTO,
    cpu_kernels: str = CpuKernelChoice.AUTO,
) -> LoadedSsm:
    """Load the SSM in `folder`; `sent` is what the drafter asks verifiers for. Raises `ModelLoadError`."""
    loaded = load_model(
        folder,
        weights,
        device,
        target_vocab_size=target_vocab_size,
        attention=attention,
        cuda_graphs=cuda_graphs,
        cpu_kernels=cpu_kernels,
    )
    maps = FeatureMaps.load(Path(folder))
    if maps is None:
        return LoadedSsm(name, loaded)
    if maps.head_rows is not None:
        loaded.replace_head(maps.head_rows)
    count = {} if metrics is None else {"on_fed": metrics.fed_rows_observer(name)}
    # Maps are stored with a scale for each input: int8 products, which want one for each output, would round them anew.
    pack = None if loaded.pack is None else PackedLinear.from_weight
    may_compile = loaded.may_compile and loaded.weights == Weights.INT8_PACKED
    feed = FeatureFeed(maps, sent, device=loaded.device, pack=pack, may_compile=may_compile, **count)
    return LoadedSsm(name, loaded, feed, maps.max_distance)


def stacks_of(ssms: Sequence[LoadedSsm]) -> list[list[LoadedSsm]]:
    """Neighbours of one shape and one draft vocabulary together, in the order given."""
    groups: list[list[LoadedSsm]] = []
    for ssm in ssms:
        if groups and stack([other.loaded for other in (*groups[-1], ssm)]) is not None:
            groups[-1].append(ssm)
        else:
            groups.append([ssm])
    return groups


def stacked(group: Sequence[LoadedSsm]) -> LoadedModel:
    """What runs a group of `stacks_of` in one forward."""
    if len(group) == 1:
        return group[0].loaded
    joint = stack([ssm.loaded for ssm in group])
    if joint is None:
        raise ValueError("SSMs of different shapes do not run as one; group them with stacks_of")
    return joint


def joint_feed(group: Sequence[LoadedSsm]) -> FeatureFeed | JointFeed | None:
    """What feeds such a group."""
    feeds = [ssm.feed for ssm in group]
    if len(feeds) == 1:
        return feeds[0]
    return JointFeed(feeds) if any(feeds) else None
