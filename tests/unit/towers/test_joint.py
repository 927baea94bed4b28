"""The joint tower and its losses against plain versions of them, one row at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import JobError, TowerError
from hetero.records import JobSpec, Pooling, TaskSpec, TextFeature, TowerSpec
from hetero.records.transformer import Objective
from hetero.towers.build import make_tower
from hetero.towers.embeddings import TextInput, embed
from hetero.towers.joint import Joint, LateHeads, TextAttention
from hetero.towers.losses import TowerLoss, pairwise_loss, task_losses
from hetero.towers.outputs import TowerOutput, check_output
from hetero.towers.task_heads import MixtureOfExperts
from hetero.towers.text_half import MaskedLoss, TextHalf, TextPooling, text_spec
from tests.unit.towers.tower_batches import Lookup, Sample, make_sample

SIZES: dict[str, object] = {"layers": 2, "width": 16, "heads": 2, "init_std": 0.2}
TEXT = TextInput("title", 6, 21, mask=20)
TOKENS = np.array([[1, 2, 3, 4, 5, 6], [7, -1, -1, -1, -1, -1], [-1] * 6, [8, 9, -1, -1, -1, -1]], np.int32)


def half(pooling: TextPooling = TextPooling.MEAN, *, masked: MaskedLoss | None = None, **changes: object) -> TextHalf:
    return TextHalf(text_spec({**SIZES, **changes}, [TEXT]), pooling=pooling, masked=masked, mask=20, seed=3).double()


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_what_fills_a_text_up_changes_nothing(objective: Objective, positions: str) -> None:
    """Each row's vector is the mean of the states of its own tokens, run alone."""
    text = half(objective=objective.value, positions=positions)
    vectors = text(torch.from_numpy(TOKENS))
    for row, tokens in enumerate(TOKENS):
        own = torch.from_numpy(tokens[tokens >= 0]).long()
        if len(own):
            assert text.transformer.embed is not None
            alone = text.transformer.encode(text.transformer.embed(own[None]))[0].mean(0)
            torch.testing.assert_close(vectors[row], alone)
        else:
            assert not vectors[row].any()


def test_cls_is_the_state_of_a_vector_before_the_text() -> None:
    text = half(TextPooling.CLS)
    vectors = text(torch.from_numpy(TOKENS))
    assert text.transformer.embed is not None
    assert text.cls is not None
    for row, tokens in enumerate(TOKENS):
        own = text.transformer.embed(torch.from_numpy(tokens[tokens >= 0]).long()[None])
        alone = text.transformer.encode(torch.cat([text.cls.expand(1, 1, -1), own], 1))[0, 0]
        torch.testing.assert_close(vectors[row], alone)


def test_hidden_tokens_are_guessed_from_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the generator says written out: which tokens are hidden, and how each of them is shown."""
    text = half(masked=MaskedLoss(share=0.5, weight=0.25))
    tokens = torch.from_numpy(TOKENS)
    hide = torch.tensor([[0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1] * 6, [0] * 6]).bool()
    draws = torch.tensor([[0.0, 0.1, 0.85, 0.95, 0.0, 0.0]] * 4)
    given_draws = iter([torch.where(hide, 0.0, 0.9), draws])
    monkeypatch.setattr(torch, "rand", lambda *size: next(given_draws))
    monkeypatch.setattr(torch, "randint", lambda *args: torch.full((4, 6), 11))
    found = text.hidden_loss(tokens)
    shown = torch.tensor([[1, 20, 11, 4, 5, 6], [20, -1, -1, -1, -1, -1]])
    expected = []
    for row, places in ((0, [1, 2, 3]), (1, [0])):
        own = shown[row][shown[row] >= 0]
        assert text.transformer.embed is not None
        scores = text.transformer.scores(text.transformer.encode(text.transformer.embed(own[None])))[0]
        nats = [-torch.log_softmax(scores[place].float(), 0)[int(tokens[row, place])] for place in places]
        expected.append(0.25 * sum(nats) / len(nats))
    torch.testing.assert_close(found[:2].float(), torch.stack([torch.as_tensor(value) for value in expected]))
    assert not found[2:].any()


def test_a_history_is_read_by_what_the_text_asks_for() -> None:
    torch.manual_seed(1)
    attention = TextAttention(5, 4).double()
    text, history = torch.randn(3, 5).double(), torch.randn(3, 2, 4).double()
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    found = attention(text, history, mask)
    for row in range(3):
        items = history[row][mask[row]]
        if not len(items):
            assert not found[row].any()
            continue
        scores = [attention.query(text[row]) @ attention.key(item) / math.sqrt(4) for item in items]
        shares = torch.softmax(torch.stack(scores), 0)
        torch.testing.assert_close(found[row], sum(s * attention.value(i) for s, i in zip(shares, items, strict=True)))


def test_mixture_of_experts() -> None:
    torch.manual_seed(1)
    mixture = MixtureOfExperts(
        5, (7, 4), experts=3, task_hidden=(6,), labels=2, activation="tanh", dropout=0.0, norm="none"
    )
    features = torch.randn(4, 5)
    found = mixture(features)
    for row, x in enumerate(features):
        opinions = [expert(x[None])[0] for expert in mixture.experts]
        for label in range(2):
            shares = torch.softmax(mixture.gates[label](x), 0)
            mixed = sum(share * opinion for share, opinion in zip(shares, opinions, strict=True))
            assert isinstance(mixed, torch.Tensor)
            torch.testing.assert_close(found[row, label], mixture.heads[label](mixed[None])[0, 0])


ROWS = st.lists(
    st.tuples(st.floats(-4, 4), st.integers(0, 1), st.integers(-2, 2), st.sampled_from([0.0, 0.5, 2.0])), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.booleans())
def test_pairwise_loss_is_the_mean_over_all_pairs(rows: list[tuple[float, int, int, float]], weighted: bool) -> None:
    total = mass = 0.0
    for s, y, group, w in rows:
        for other_s, other_y, other_group, other_w in rows:
            if group == other_group and y == 1 and other_y == 0:
                pair = w * other_w if weighted else 1.0
                mass += pair
                total += pair * math.log1p(math.exp(other_s - s))
    logits, labels, groups, weights = (torch.tensor([row[at] for row in rows]) for at in range(4))
    found = pairwise_loss(logits.double(), labels.double(), groups.long(), weights.double() if weighted else None)
    assert float(found) == pytest.approx(total / mass if mass else 0.0, abs=1e-5)


def test_tasks_count_where_their_label_is_known() -> None:
    tasks = (TaskSpec(name="a", column="a", weight=0.5), TaskSpec(name="b", column="b", weight=2.0))
    logits = torch.tensor([[0.3, -1.0], [2.0, 0.1]], requires_grad=True)
    labels = torch.tensor([[1.0, math.nan], [math.nan, 0.0]])
    losses = task_losses(logits, labels, tasks)
    first, second = 0.5 * math.log1p(math.exp(-0.3)), 2.0 * math.log1p(math.exp(0.1))
    torch.testing.assert_close(losses, torch.tensor([first, second]))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[0, 1] == logits.grad[1, 0] == 0


# ------------------------------------------------------------------------------------------ the whole tower


def joint_sample(**args: object) -> Sample:
    lookups = [
        Lookup("wide", 0),
        Lookup("item", 1),
        Lookup("history", 1, Pooling.NONE),
        Lookup("tags", 1, Pooling.MEAN),
    ]
    sample = make_sample(lookups, dims=[1, 4], dense=2, rows=len(TOKENS), seed=4)
    job = replace(
        sample.job,
        train=replace(
            sample.job.train,
            texts=(TextFeature(name="title", column="title", length=6, vocabulary=21, mask=20),),
            tasks=(TaskSpec(name="bought", column="bought", weight=0.3),),
        ),
        tower=TowerSpec(name="joint", args={"transformer": SIZES, "hidden": [8], **args}),
    )
    labels, tasks = np.array([1, 0, 1, 0], np.float32), np.array([[1], [np.nan], [0], [1]], np.float32)
    batch = replace(sample.batch, labels=labels, tokens=(TOKENS,), tasks=tasks)
    return replace(sample, job=job, batch=batch, layout=type(sample.layout).from_job(job))


FULL: dict[str, object] = {"history": ["history"], "masked": {"share": 0.5, "weight": 0.1}, "pooling": "cls"}


LATE: dict[str, object] = {"fusion": "late", "half_loss": 0.5}


@pytest.mark.parametrize("more", [{"experts": 2}, {"experts": 0}, LATE, {**LATE, "experts": 2}])
def test_both_halves_and_the_rows_get_gradients(more: dict[str, object]) -> None:
    sample = joint_sample(**FULL, **more)
    module, leaves = make_tower(sample.job).train(), sample.leaves()
    output = module(torch.from_numpy(sample.batch.dense), embed(sample.batch, leaves, sample.layout))
    checked = check_output(output, len(TOKENS), tasks=1)
    TowerLoss(sample.job)(checked, sample.batch, weight_sum=4.0).backward()  # type: ignore[no-untyped-call]
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    for rows in leaves:
        assert rows.grad is not None
        assert rows.grad.abs().sum() > 0
    assert {name.split(".")[0] for name, _ in module.named_parameters()} == {"text", "head", "wide", "histories"}


def test_halves_that_meet_late_know_nothing_of_each_other() -> None:
    """Logits are the means of both heads'; beside them each half's own, of the first label, while training."""
    sample = joint_sample(**LATE, history=["history"])
    module, dense = make_tower(sample.job).train(), torch.from_numpy(sample.batch.dense)
    assert isinstance(module, Joint)
    assert isinstance(module.head, LateHeads)
    embeddings = embed(sample.batch, sample.leaves(), sample.layout)
    found = module(dense, embeddings)
    assert found.parts.shape == (len(TOKENS), 2)
    torch.testing.assert_close(found.parts.mean(1), found.logits)
    texts = module.head.text(module.read([torch.from_numpy(TOKENS)])[0])
    torch.testing.assert_close(found.parts[:, 0], texts[:, 0])
    others = embed(replace(sample.batch, tokens=(TOKENS[::-1].copy(),)), sample.leaves(), sample.layout)
    changed = module(dense, others).parts
    assert not torch.equal(changed[:, 0], found.parts[:, 0])
    plain = module(dense, embed(sample.batch, [rows * 2 for rows in sample.leaves()], sample.layout)).parts
    assert torch.equal(plain[:, 0], found.parts[:, 0])
    assert not torch.equal(plain[:, 1], found.parts[:, 1])
    assert module.eval()(dense, embeddings).parts is None


def test_a_half_may_be_a_linear_part_alone() -> None:
    sample = joint_sample(**LATE)
    lookups = tuple(lookup for lookup in sample.job.lookups if lookup.name == "wide")
    module = make_tower(replace(sample.job, lookups=lookups, train=replace(sample.job.train, dense=())))
    assert isinstance(module, Joint)
    assert isinstance(module.head, LateHeads)
    assert module.head.rest is None
    textual = replace(sample.job, lookups=(), train=replace(sample.job.train, dense=()))
    with pytest.raises(TowerError, match="the job has texts alone"):
        make_tower(textual)


@pytest.mark.parametrize("loss", ["bce", "mse", "bce+pairwise"])
def test_parts_of_a_model_have_losses_of_their_own(loss: str) -> None:
    sample = joint_sample()
    job = replace(sample.job, tower=replace(sample.job.tower, loss=loss))
    job = replace(job, train=replace(job.train, gauc_column="user"))
    batch = replace(
        sample.batch, gauc_ids=np.array([3, 3, 3, 4], np.uint64), weights=np.array([1, 2, 0.5, 1], np.float32)
    )
    logits, parts = torch.randn(4), torch.randn(4, 2)
    compute = TowerLoss(job)
    tasks = torch.zeros(4, 1)

    def alone(values: torch.Tensor) -> torch.Tensor:
        return compute(TowerOutput(logits=values, tasks=tasks), batch, weight_sum=4.5)

    of_tasks = alone(torch.zeros(4)) - TowerLoss(job)(
        TowerOutput(logits=torch.zeros(4)), replace(batch, tasks=None), weight_sum=4.5
    )
    whole = compute(TowerOutput(logits=logits, tasks=tasks, parts=parts, part_weight=0.25), batch, weight_sum=4.5)
    expected = alone(logits) + 0.25 * (alone(parts[:, 0]) + alone(parts[:, 1]) - 2 * of_tasks)
    torch.testing.assert_close(whole, expected)


def test_the_loss_is_the_sum_of_its_parts_and_adds_up_over_towers() -> None:
    sample = joint_sample()
    logits, tasks, side = torch.randn(4), torch.randn(4, 1), torch.rand(4)
    loss = TowerLoss(sample.job)
    whole = loss(TowerOutput(logits=logits, tasks=tasks, side=side), sample.batch, weight_sum=4.0)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    known = [0, 2, 3]
    assert sample.batch.tasks is not None
    wanted = torch.from_numpy(sample.batch.tasks)[known, 0]
    expected = bce(logits, torch.from_numpy(sample.batch.labels), reduction="sum") + side.sum()
    expected = expected + 0.3 * bce(tasks[known, 0], wanted, reduction="sum")
    torch.testing.assert_close(whole, expected / 4)
    shares = []
    for rows in (slice(0, 1), slice(1, 4)):
        part = replace(sample.batch, labels=sample.batch.labels[rows], tasks=sample.batch.tasks[rows])
        output = TowerOutput(logits=logits[rows], tasks=tasks[rows], side=side[rows])
        shares.append(loss(output, part, weight_sum=4.0))
    torch.testing.assert_close(sum(shares), whole)


def test_scores_are_of_the_first_label_and_hide_nothing() -> None:
    sample = joint_sample(**FULL)
    module = make_tower(sample.job).eval()
    dense, embeddings = torch.from_numpy(sample.batch.dense), embed(sample.batch, sample.leaves(), sample.layout)
    first, again = module(dense, embeddings), module(dense, embeddings)
    assert first.side is None
    assert torch.equal(first.logits, again.logits)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"transformer": {"layers": 2, "width": 16}}, "transformer.heads is missing"),
        ({"transformer": {**SIZES, "depth": 3}}, "no argument 'depth'; it accepts"),
        ({"transformer": {**SIZES, "context": 4}}, "context is 4; a text of 6 tokens needs 7"),
        ({"transformer": {**SIZES, "width": 15}}, "width 15 is no multiple of heads 2"),
        ({"history": ["item"]}, "'item' must be a sequence"),
        ({"masked": {"rate": 0.1}}, "no argument 'rate'; it accepts share and weight"),
        ({"masked": {"share": 1.5}}, "share must lie between 0 and 1"),
        ({"pooling": "max"}, "pooling must be one of mean, cls"),
        ({"experts": 2, "hidden": []}, "an expert needs at least one layer"),
        ({"fusion": "middle"}, "fusion must be one of early, late"),
        ({"half_loss": 0.5}, "logits of their own with `fusion: late` alone"),
        ({"fusion": "late", "half_loss": -1}, "half_loss must be a number of 0 or more, got -1"),
    ],
)
def test_what_does_not_fit_is_named(args: dict[str, object], said: str) -> None:
    with pytest.raises(TowerError, match=said):
        make_tower(joint_sample(**args).job)


def test_a_tower_without_texts_or_without_a_mask_is_refused() -> None:
    job = joint_sample().job
    with pytest.raises(TowerError, match="the job has none; name a column of tokens"):
        make_tower(replace(job, train=replace(job.train, texts=())))
    maskless = replace(job.train.texts[0], mask=None)
    masked = replace(job.tower, args={**job.tower.args, "masked": {}})
    with pytest.raises(TowerError, match="has no id for hidden tokens"):
        make_tower(replace(job, train=replace(job.train, texts=(maskless,)), tower=masked))


def test_a_tower_that_ignores_further_labels_is_refused() -> None:
    with pytest.raises(TowerError, match="no logits for the job's 1 further labels"):
        check_output(torch.zeros(3), 3, tasks=1)
    with pytest.raises(TowerError, match="side loss of shape"):
        check_output(TowerOutput(logits=torch.zeros(3), side=torch.zeros(2)), 3)
    with pytest.raises(TowerError, match="logits of parts of shape"):
        check_output(TowerOutput(logits=torch.zeros(3), parts=torch.zeros(3)), 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"loss": "bces"}, "did you mean `bce`"), ({"loss": "pairwise"}, "say in data.gauc which column groups them")],
)
def test_losses_that_cannot_be(changes: dict[str, str], said: str) -> None:
    job: JobSpec = joint_sample().job
    with pytest.raises(JobError, match=said):
        TowerLoss(replace(job, tower=replace(job.tower, **changes)))  # type: ignore[arg-type]


def test_the_tower_is_the_same_for_the_same_seed() -> None:
    job = joint_sample(**FULL).job
    first, again, other = make_tower(job), make_tower(job), make_tower(replace(job, seed=1))
    assert isinstance(first, Joint)
    for (name, value), same, another in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(value, same), name
        if value.ndim > 1 and "norm" not in name:
            assert not torch.equal(value, another), name
