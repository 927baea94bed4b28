"""Text from a trained deep model: continued by a causal one, its gaps filled by a masked one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hetero.checkpoint.mesh_snapshot import read_snapshot, snapshots_in
from hetero.data.token_store import TokenStore
from hetero.errors import UserError
from hetero.loops.deep import SNAPSHOTS
from hetero.observe.run_folder import RunFolder
from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.mesh import Mesh
from hetero.records.deep_job import DeepJobSpec
from hetero.records.mesh import MeshSpec
from hetero.records.transformer import Objective
from hetero.towers.transformer import Transformer
from pipelines.deep_resolve import resolve_deep
from pipelines.deep_schema import load_deep_job
from pipelines.text_codec import TextCodec, load_codec

GAP = "_"
_DEADLINE_S = 30.0


def sample_run(run: Path, *, prompt: str, tokens: int, temperature: float, seed: int, threads: int = 1) -> str:
    """Text by the newest snapshot of a run, on this machine's CPU.

    A causal model continues `prompt` by `tokens` tokens, each drawn from its probabilities to the power of 1 /
    temperature; 0 takes the likeliest. A masked model fills every `_` of the prompt, the surest first. Raises UserError
    when there is no snapshot, or no gap to fill.
    """
    folder = RunFolder.open(run)
    found = snapshots_in(folder.path / SNAPSHOTS)
    if not found:
        raise UserError(f"run folder {run}: holds no snapshot of a deep model; train one first")
    spec = resolve_deep(load_deep_job(folder.resolved_job))
    codec = load_codec(Path(spec.text.train), kind=TokenStore(Path(spec.text.train)).meta.tokenizer)
    torch.set_num_threads(threads)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _model(spec, found[-1])
        if spec.model.objective is Objective.MASKED:
            return _filled(model, codec, prompt)
        return _continued(model, codec, prompt, tokens=tokens, temperature=temperature, known=spec.text.vocabulary)


def _model(spec: DeepJobSpec, snapshot: Path) -> Transformer:
    """The whole model in this process."""
    alone = replace(spec, mesh=MeshSpec(), device="cpu")
    mesh = Mesh(alone.mesh, rank=0, size=1, device=torch.device("cpu"), deadline_s=_DEADLINE_S)
    try:
        tower = DeepTower(alone.model, mesh=mesh, optimizer=alone.optimizer, batch_size=1, seed=alone.seed)
        read_snapshot(tower, snapshot, data=None)
    finally:
        mesh.close()
    model = tower.parts[0]
    model.eval()
    return model


@torch.no_grad()
def _continued(
    model: Transformer, codec: TextCodec, prompt: str, *, tokens: int, temperature: float, known: int
) -> str:
    ids = codec.encode(prompt).tolist() or codec.encode("\n").tolist()
    for _ in range(tokens):
        window = torch.tensor([ids[-model.spec.context :]])
        logits = model(window)[0, -1, :known]
        logits[codec.mask] = -torch.inf
        ids.append(_drawn(logits, temperature))
    return codec.decode(ids)


@torch.no_grad()
def _filled(model: Transformer, codec: TextCodec, prompt: str) -> str:
    pieces = [codec.encode(piece).tolist() for piece in prompt.split(GAP)]
    ids = pieces[0]
    for piece in pieces[1:]:
        ids = [*ids, codec.mask, *piece]
    if len(pieces) == 1 or len(ids) > model.spec.context:
        raise UserError(
            f"prompt: a masked model fills gaps written `{GAP}` in at most {model.spec.context} tokens; got "
            f"{len(pieces) - 1} gaps in {len(ids)} tokens"
        )
    filled = torch.tensor([ids])
    while (gaps := filled[0] == codec.mask).any():
        chances = torch.softmax(model(filled)[0].float(), dim=-1)
        chances[:, codec.mask :] = 0.0
        best, taken = chances.max(dim=-1)
        surest = int(torch.where(gaps, best, -1.0).argmax())
        filled[0, surest] = taken[surest]
    return codec.decode(filled[0].tolist())


def _drawn(logits: Tensor, temperature: float) -> int:
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits.float() / temperature, dim=-1), 1))
