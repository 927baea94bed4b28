"""What goes together on a mesh and what does not; refused before anything is built, with what does."""

from __future__ import annotations

from collections.abc import Iterator

from hetero.errors import JobError
from hetero.records.mesh import AXES, MeshSpec, PipelineSchedule, Recompute
from hetero.records.transformer import Positions, TransformerSpec


def check_mesh(mesh: MeshSpec, *, model: TransformerSpec, batch_size: int, ranks: int | None = None) -> None:
    """Raises JobError with everything that does not go together.

    batch_size: sequences of one step, over all ranks. ranks: those there are; None takes the mesh's product.
    """
    found = [*_degrees(mesh, ranks), *_batch(mesh, batch_size)]
    if not found:
        found = [*_tensor(mesh, model), *_pipeline(mesh, model), *_two_passes(mesh)]
    if found:
        raise JobError("\n".join(found))


def blocks_per_stage(mesh: MeshSpec, model: TransformerSpec) -> tuple[int, ...]:
    """Blocks of every stage: as given, or even, the first stages taking one more where it does not come out."""
    if mesh.blocks_per_stage is not None:
        return mesh.blocks_per_stage
    each, more = divmod(model.layers, mesh.stages)
    return tuple(each + (stage < more) for stage in range(mesh.stages))


def nearest_divisor(count: int, wanted: int) -> int:
    """The divisor of `count` nearest to `wanted`, the smaller of two."""
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    return min(divisors, key=lambda number: (abs(number - wanted), number))


def _degrees(mesh: MeshSpec, ranks: int | None) -> Iterator[str]:
    for axis in AXES:
        if getattr(mesh, axis) < 1:
            yield f"mesh.{axis}: is {getattr(mesh, axis)}; an axis has at least 1 rank"
    if sorted(mesh.order) != sorted(AXES):
        yield f"mesh.order: holds {', '.join(mesh.order)}; it must hold each of {', '.join(AXES)} once"
    if ranks is not None and mesh.ranks != ranks:
        yield f"mesh: {mesh.describe()}, and there are {ranks}; change a degree or the number of ranks"
    if mesh.sharding not in (1, 2, 3):
        yield f"mesh.sharding: stage {mesh.sharding} does not exist; take 1, 2 or 3"
    for name in ("stages_per_rank", "micro_batches"):
        if getattr(mesh, name) < 1:
            yield f"mesh.{name}: is {getattr(mesh, name)}; it must be at least 1"


def _batch(mesh: MeshSpec, batch_size: int) -> Iterator[str]:
    parts = mesh.data_ways * mesh.micro_batches
    if parts > 0 and (batch_size % parts or batch_size < parts):
        below, above = batch_size // parts * parts, (batch_size // parts + 1) * parts
        near = above if below == 0 else below if batch_size - below <= above - batch_size else above
        yield (
            f"train.batch_size: {batch_size} sequences do not divide into {mesh.data_ways} data ways (dp {mesh.dp} x "
            f"shard {mesh.shard}) of {mesh.micro_batches} micro-batches; nearest that does: {near}"
        )


def _tensor(mesh: MeshSpec, model: TransformerSpec) -> Iterator[str]:
    if mesh.tp == 1:
        return
    sizes = {
        "kv_heads": model.kv_heads,
        "hidden": model.hidden,
        "vocabulary": model.vocabulary,
        "context": model.context,
    }
    for name, size in sizes.items():
        if size % mesh.tp:
            above = -(-size // mesh.tp) * mesh.tp
            why = {
                "kv_heads": "a head of keys and values stays on one rank",
                "hidden": "the MLP is split by columns",
                "vocabulary": "embedding and output are split by rows of the vocabulary",
                "context": "norms and residuals are split by tokens",
            }[name]
            yield (
                f"mesh.tp: {name} {size} does not divide by tp {mesh.tp}, and {why}; take tp "
                f"{nearest_divisor(size, mesh.tp)}, or {name} {above}"
            )
    if model.positions is Positions.ROTARY and model.heads % mesh.tp:
        near = nearest_divisor(model.heads, mesh.tp)
        yield f"mesh.tp: heads {model.heads} do not divide by tp {mesh.tp}; take tp {near}"


def _pipeline(mesh: MeshSpec, model: TransformerSpec) -> Iterator[str]:
    given = mesh.blocks_per_stage
    if given is not None and len(given) != mesh.stages:
        yield (
            f"mesh.blocks_per_stage: has {len(given)} entries, pp {mesh.pp} x stages_per_rank {mesh.stages_per_rank} "
            f"makes {mesh.stages} stages"
        )
    elif given is not None and (sum(given) != model.layers or min(given) < 1):
        yield (
            f"mesh.blocks_per_stage: {list(given)} hold {sum(given)} blocks, the model has {model.layers}, and every "
            "stage needs one"
        )
    elif model.layers < mesh.stages:
        yield (
            f"mesh.pp: {mesh.stages} stages (pp {mesh.pp} x {mesh.stages_per_rank} a rank) of {model.layers} blocks; "
            f"every stage needs one, take at most {model.layers} stages"
        )
    if mesh.pp == 1:
        if mesh.stages_per_rank > 1:
            yield f"mesh.stages_per_rank: is {mesh.stages_per_rank} with pp 1; without a pipeline take 1"
        return
    yield from _schedule(mesh)


def _schedule(mesh: MeshSpec) -> Iterator[str]:
    name, stages = mesh.schedule.value, mesh.stages_per_rank
    if not mesh.schedule.looped and stages != 1:
        yield f"mesh.schedule: {name} has one stage a rank, not {stages}; take interleaved_1f1b, or stages_per_rank 1"
    if mesh.schedule is PipelineSchedule.ZBV and stages != 2:
        yield f"mesh.schedule: zbv has two stages a rank, not {stages}; take stages_per_rank 2"
    if mesh.schedule is PipelineSchedule.INTERLEAVED and stages < 2:
        yield f"mesh.schedule: {name} with one stage a rank is 1f1b; take 1f1b, or stages_per_rank 2"
    if mesh.micro_batches < mesh.pp:
        yield (
            f"mesh.micro_batches: {mesh.micro_batches} cannot fill a pipeline of pp {mesh.pp}; take at least {mesh.pp}"
        )
    rounds = max(1, mesh.micro_batches // mesh.pp)
    if mesh.schedule in (PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE) and mesh.micro_batches % rounds:
        yield (
            f"mesh.micro_batches: {name} runs them in {rounds} equal rounds of about pp {mesh.pp}, and "
            f"{mesh.micro_batches} does not divide; take {mesh.micro_batches // mesh.pp * mesh.pp}"
        )


def _two_passes(mesh: MeshSpec) -> Iterator[str]:
    """What a backward in two passes, inputs' gradients and then weights', leaves no room for."""
    if mesh.pp == 1 or not mesh.schedule.splits_backward:
        return
    if mesh.recompute is Recompute.SELECTIVE:
        yield (
            f"mesh.recompute: {mesh.schedule.value} goes back through every block twice, and selective recomputation "
            "lets go of what it kept at the first time; take recompute full or none, or schedule interleaved_1f1b"
        )
    if mesh.shard > 1 and mesh.sharding > 1:
        yield (
            f"mesh.sharding: stage {mesh.sharding} reduces gradients after every micro-batch, and "
            f"{mesh.schedule.value} takes the weights' gradients in a pass of its own, after which there is no "
            "moment to; take sharding 1, or schedule interleaved_1f1b"
        )
