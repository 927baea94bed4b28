"""The transformer against plain formulas, written out here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hetero.errors import TowerError
from hetero.records.transformer import MlpKind, NormKind, Objective, Positions, TransformerSpec
from hetero.towers.attention import RotaryTable
from hetero.towers.transformer import IGNORED, Part, Transformer, check_transformer, parts_of, token_loss
from hetero.towers.transformer_initial import initial_value, set_initial
from tests.support.transformers import bert_like

LLAMA = TransformerSpec(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=11, context=9)
BERT = bert_like(layers=2, width=16, kv_heads=4, hidden=24, vocabulary=11, context=9)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products in one thread: on a busy machine two wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(spec: TransformerSpec) -> Transformer:
    """A model whose every parameter is random, norms and biases too, so that none can be forgotten unnoticed."""
    model = Transformer(spec).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def plain_norm(x: Tensor, p: dict[str, Tensor], name: str, spec: TransformerSpec) -> Tensor:
    if spec.norm is NormKind.RMS:
        return x / (x.square().mean(-1, keepdim=True) + spec.norm_eps).sqrt() * p[f"{name}.weight"]
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + spec.norm_eps).sqrt()
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def plain_linear(x: Tensor, p: dict[str, Tensor], name: str) -> Tensor:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", torch.zeros((), dtype=x.dtype))


def plain_turn(vector: Tensor, position: int, base: float) -> Tensor:
    """One head's vector [E], its pairs (i, i + E/2) turned as complex numbers."""
    half = len(vector) // 2
    pairs = torch.complex(vector[:half], vector[half:])
    angles = torch.tensor([position * base ** (-2 * i / len(vector)) for i in range(half)], dtype=torch.float64)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag))


def plain_attention(x: Tensor, p: dict[str, Tensor], name: str, spec: TransformerSpec) -> Tensor:
    """Head by head and token by token, x [T, D]."""
    length, wide, grouped = len(x), spec.head_width, spec.heads // spec.kv_heads
    query, key, value = (plain_linear(x, p, f"{name}.{part}") for part in ("query", "key", "value"))
    heads = []
    for head in range(spec.heads):
        own, shared = slice(head * wide, (head + 1) * wide), head // grouped
        theirs = slice(shared * wide, (shared + 1) * wide)
        q, k, v = query[:, own], key[:, theirs], value[:, theirs]
        if spec.positions is Positions.ROTARY:
            q = torch.stack([plain_turn(q[t], t, spec.rotary_base) for t in range(length)])
            k = torch.stack([plain_turn(k[t], t, spec.rotary_base) for t in range(length)])
        rows = []
        for t in range(length):
            seen = t + 1 if spec.objective is Objective.CAUSAL else length
            weights = torch.softmax(k[:seen] @ q[t] / math.sqrt(wide), dim=0)
            rows.append(weights @ v[:seen])
        heads.append(torch.stack(rows))
    return plain_linear(torch.cat(heads, dim=1), p, f"{name}.output")


def plain_model(tokens: Tensor, p: dict[str, Tensor], spec: TransformerSpec) -> Tensor:
    """Logits [T, V] of one sequence."""
    x = p["embed.tokens.weight"][tokens]
    if spec.positions is Positions.LEARNED:
        x = x + p["embed.positions.weight"][: len(tokens)]
    for number in range(spec.layers):
        block = f"blocks.{number}"
        x = x + plain_attention(plain_norm(x, p, f"{block}.attention_norm", spec), p, f"{block}.attention", spec)
        y = plain_norm(x, p, f"{block}.mlp_norm", spec)
        up = plain_linear(y, p, f"{block}.mlp.up")
        if spec.mlp is MlpKind.GATED:
            gate = plain_linear(y, p, f"{block}.mlp.gate")
            inner = gate / (1 + torch.exp(-gate)) * up
        else:
            inner = 0.5 * up * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + plain_linear(inner, p, f"{block}.mlp.down")
    x = plain_norm(x, p, "norm", spec)
    return x @ p["embed.tokens.weight" if spec.tied else "head.weight"].T


@pytest.mark.parametrize(
    "spec",
    [LLAMA, BERT, replace(LLAMA, kv_heads=1, tied=True), replace(BERT, positions=Positions.ROTARY, tied=False)],
    ids=["llama", "bert", "multi-query tied", "bert rotary"],
)
def test_logits_are_those_of_the_formulas(spec: TransformerSpec) -> None:
    model = made(spec)
    tokens = torch.randint(0, spec.vocabulary, (3, spec.context), generator=torch.Generator().manual_seed(1))
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    expected = torch.stack([plain_model(sequence, parameters, spec) for sequence in tokens])
    torch.testing.assert_close(model(tokens), expected, rtol=1e-10, atol=1e-12)


def test_loss_counts_targets_that_are_not_ignored() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64)
    targets = torch.tensor([[1, IGNORED, 4], [IGNORED, 0, 2]])
    expected = sum(
        -math.log(math.exp(logits[b, t, targets[b, t]]) / sum(math.exp(value) for value in logits[b, t]))
        for b, t in [(0, 0), (0, 2), (1, 1), (1, 2)]
    )
    assert token_loss(logits, targets).item() == pytest.approx(expected, rel=1e-12)


def test_a_causal_model_sees_no_later_token() -> None:
    model = made(LLAMA)
    tokens = torch.zeros((1, 9), dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 5] = 7
    first, second = model(tokens), model(changed)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5], second[:, 5])


@pytest.mark.parametrize("spec", [LLAMA, BERT, replace(LLAMA, bias=True, tied=True)])
def test_the_spec_counts_the_parameters_there_are(spec: TransformerSpec) -> None:
    assert spec.parameters == sum(parameter.numel() for parameter in Transformer(spec).parameters())


@pytest.mark.parametrize("spec", [LLAMA, BERT])
def test_parts_in_a_row_are_the_whole(spec: TransformerSpec) -> None:
    spec = replace(spec, layers=3)
    whole = made(spec)
    tokens = torch.randint(0, spec.vocabulary, (2, spec.context))
    x = tokens
    for part in parts_of(spec, [2, 1]):
        cut = Transformer(spec, part=part).double()
        cut.load_state_dict({name: whole.state_dict()[name] for name in cut.state_dict()})
        x = cut(x)
    torch.testing.assert_close(x, whole(tokens), rtol=1e-12, atol=1e-12)


def test_first_values_depend_on_seed_and_name_alone() -> None:
    spec = replace(LLAMA, layers=40, width=64, hidden=128)
    whole = Transformer(spec)
    set_initial(whole, spec, seed=7)
    part = Transformer(spec, part=Part(start=3, stop=4, first=False, last=False))
    set_initial(part, spec, seed=7)
    name = "blocks.3.mlp.down.weight"
    torch.testing.assert_close(part.get_parameter(name), whole.get_parameter(name), rtol=0, atol=0)
    assert float(whole.get_parameter(name).detach().std()) == pytest.approx(0.02 / math.sqrt(80), rel=0.05)
    assert float(whole.get_parameter("blocks.3.mlp.up.weight").detach().std()) == pytest.approx(0.02, rel=0.05)
    again = initial_value(name, torch.Size([64, 128]), spec, seed=8)
    assert not torch.equal(again, whole.get_parameter(name))
    assert not torch.equal(whole.get_parameter("blocks.2.mlp.down.weight"), whole.get_parameter(name))


def test_rotary_products_depend_on_distance_alone() -> None:
    table = RotaryTable(head_width=8, context=16, base=10_000.0)
    one = torch.randn(8, dtype=torch.float64).expand(1, 1, 16, 8)
    other = torch.randn(8, dtype=torch.float64).expand(1, 1, 16, 8)
    products = (table.turn(one) @ table.turn(other).transpose(-1, -2))[0, 0]
    for distance in (0, 1, 5):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[0].expand_as(along), rtol=1e-10, atol=1e-10)


def test_dropout_works_in_training_alone() -> None:
    model = made(replace(LLAMA, dropout=0.5))
    tokens = torch.zeros((1, 9), dtype=torch.int64)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_gradients_are_those_of_the_formulas() -> None:
    model = made(LLAMA)
    tokens = torch.randint(0, LLAMA.vocabulary, (1, LLAMA.context + 1), generator=torch.Generator().manual_seed(2))
    token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()  # type: ignore[no-untyped-call]
    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    plain = functional.cross_entropy(plain_model(tokens[0, :-1], parameters, LLAMA), tokens[0, 1:], reduction="sum")
    plain.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, parameters[name].grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 18}, "width 18 is no multiple of heads 4; take width 20"),
        ({"kv_heads": 3}, r"heads 4 is no multiple of kv_heads 3; take one of \[1, 2, 4\]"),
        ({"width": 12}, "a head is 3 wide"),
        ({"dropout": 1.0}, "dropout is 1; it must be in"),
        ({"layers": 0}, "layers is 0; it must be at least 1"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(TowerError, match=words):
        check_transformer(replace(LLAMA, **change))  # type: ignore[arg-type]


def test_parts_that_are_not_the_model_are_refused() -> None:
    with pytest.raises(TowerError, match=r"parts of \[1, 2\] blocks hold 3 blocks, the model has 2"):
        parts_of(LLAMA, [1, 2])
