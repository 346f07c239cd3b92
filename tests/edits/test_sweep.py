"""Many plans at once give what each gives by itself, and the model is left as it was.

The oracle: one plan after another (`share=False`), and that against `applied` and the metric by hand.
"""

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.edits import Runner, choose_metric, plan_edits
from manyheads.edits.runner import blocks_of
from manyheads.errors import StatisticError
from manyheads.inputs import read
from manyheads.models.taps.open_taps import OPEN
from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection
from manyheads.spec import ModelSpec
from tests.interventions.surgeries import HEADS, MATTERS, TEXTS, hook_counts, loaded
from tests.models.eager import draw

SAME = 1e-6  # of the largest change
METRICS = {"bert": "cosine", "gpt2": "loss", "llama": "loss", "gemma2": "loss", "gpt_oss": "loss", "t5": "loss"}
STACKS = {"t5": ("encoder:", "decoder:", "cross:")}
CORPUS = list(TEXTS)


def ready(fresh):
    return [{"pixel_values": torch.randn(size, 3, 24, 40, generator=fresh, dtype=torch.float64)} for size in (2, 3)]


def own(outputs, inputs):
    """For pictures: how large the first numbers of the last states are."""
    return outputs.last_hidden_state[..., :5].square().mean((1, 2))


def corpus_of(name, fresh, num_tokens=2048):
    # In float64: changes are of losses of some nats, of batches of other sizes, which float32 adds in other orders.
    # There eager attention makes NaN of padding whose window holds no token: windows reach back to the shortest text.
    window = {"sliding_window": 10} if name == "gemma2" else {}
    lm = loaded(name, draw(fresh), dtype=torch.float64, **window)
    reading = read(lm, ready(fresh) if name == "vit" else CORPUS)
    return lm, tuple(reading.batches(num_tokens)), choose_metric(lm, own if name == "vit" else METRICS[name])[0]


def sweep(lm, plans, corpus, metric, *, texts=None, progress=None, **options):
    return Runner.of(lm, plan_edits(lm, plans, texts), metric, **options).over(corpus, progress)


def swept(lm, plans, corpus, metric, **options):
    """Changes one by one, changes together, and what was said of these."""
    texts = CORPUS if lm.tokenizer is not None and "pixel" not in lm.model.main_input_name else None
    alone = sweep(lm, plans, corpus, metric, texts=texts, share=False)
    together = sweep(lm, plans, corpus, metric, texts=texts, **options)
    assert alone.because == "one by one: as asked"
    return alone.changes, together.changes, together.because


def assert_swept(got, want, idle=()):
    """Within a share of the largest change; every plan but the idle ones changed something."""
    assert (got - want).abs().max() <= SAME * max(1.0, float(want.abs().max()))
    moved = want.abs().amax(0) > MATTERS / 10
    assert [at for at in range(len(moved)) if not moved[at]] == list(idle)


def every_kind(name):
    """Each step, in each layer of each stack, and over several."""
    plans = []
    for stack in STACKS.get(name, ("",)):
        plans += [Plan(Ablate(f"{stack}L{layer}H{HEADS[name] - 1}")) for layer in (0, 1)]
        plans += [Plan(Ablate(f"{stack}L1H1", kind="first")), Plan(Scale(f"{stack}L0H1", -2.0))]
        plans += [Plan(Average(f"{stack}L1H0-1, {stack}L1H2")), Plan(Copy(f"{stack}L*H1", f"{stack}L*H0"))]
        if name != "vit":
            plans.append(Plan(Ablate(f"{stack}L0H1, {stack}L1H2", kind="mean", per_position=True)))
            plans.append(Plan(Ablate(f"{stack}L1", kind="resample", text=TEXTS[2])))
            plans.append(Plan(Ablate(f"{stack}L1", kind="resample", seed=3)))
    if name in ("gpt2", "llama", "gemma2"):
        plans.append(Plan(Ablate("L1H1, L2H2", kind="first")))  # begins where layers before it are skipped
    if name in ("bert", "gpt2", "llama", "vit"):
        plans.append(Plan([SkipOutputProjection(1), Scale("L0H1", 2.0)]))
        plans.append(Plan(SkipOutputProjection(1)))
    return plans


KNOWN = {"t5": (5, 2), "vit": (2, 2), "bert": (2, 2), "gpt_oss": (2, 2)}  # blocks, and attention that is made again


@pytest.mark.thinned(name=("t5", "gpt_oss", "bert", "vit"))
@pytest.mark.parametrize("name", [*METRICS, "vit"])
def test_plans_together_change_what_each_changes_by_itself(name, fresh):
    lm, corpus, metric = corpus_of(name, fresh)
    want, got, because = swept(lm, every_kind(name), corpus, metric)
    assert_swept(got, want)
    blocks, known = KNOWN.get(name, (3, 3))
    assert because == f"what layers share is computed once: {blocks} blocks, attention of {known} of them too"


@pytest.mark.parametrize("num_tokens", [1, 45])
def test_how_much_is_read_and_expanded_at_a_time_changes_nothing(num_tokens, fresh):
    lm, corpus, metric = corpus_of("llama", fresh, 30)
    assert len(corpus) > 1 and any(len(batch.places) > 1 for batch in corpus)
    want, got, _ = swept(lm, every_kind("llama"), corpus, metric, num_tokens=num_tokens)
    assert_swept(got, want)


@pytest.mark.parametrize("metric", ["cosine", "kl"])
def test_a_metric_that_reads_the_model_without_its_head_sees_plans_of_several_layers(metric, fresh):
    lm, corpus, _ = corpus_of("gpt2", fresh)
    plans = [Plan(Ablate("L1H1, L2H3")), Plan([Scale("L1H0", 3.0), Average("L2H0-1")]), Plan(Ablate("L2H0"))]
    want, got, because = swept(lm, plans, corpus, choose_metric(lm, metric)[0])
    assert because.startswith("what layers share")
    assert_swept(got, want)


def test_one_by_one_is_what_applied_and_the_models_own_loss_give(fresh):
    lm, corpus, metric = corpus_of("gpt2", fresh)
    plan = Plan([Ablate("L1H1"), Scale("L0H2", 2.0)])
    changes = sweep(lm, [plan, Plan(Ablate("L2H0"))], corpus, metric).changes[:, 0]

    def loss(text):
        ids = lm.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            return lm.model(ids, labels=ids).loss

    for text, change in zip(CORPUS, changes, strict=True):
        with mh.applied(lm, plan):
            after = loss(text)
        assert abs(float(after - loss(text)) - change) < 1e-5


def test_a_plan_that_touches_nothing_changes_nothing(fresh):
    lm, corpus, metric = corpus_of("llama", fresh)
    want, got, _ = swept(lm, [Plan([]), Plan(Ablate("L1H1")), Plan(Scale("L0H2", 1.0))], corpus, metric)
    assert_swept(got, want, idle=(0, 2))


# ------------------------------------------------------------------------------------------------ what cannot be shared


class Counts(nn.Module):
    """Adds to every text what hangs on how many there are."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs) + 0.1 * len(args[0])


def test_where_an_expanded_batch_differs_plans_run_one_by_one_and_that_is_said(fresh):
    lm, corpus, metric = corpus_of("llama", fresh)
    lm.model.model.layers[2].mlp = Counts(lm.model.model.layers[2].mlp).eval()
    plans = every_kind("llama")
    want, got, because = swept(lm, plans, corpus, metric)
    assert because == "one by one: an expanded batch does not give what the plain one does"
    assert_swept(got, want)


class Full(Counts):
    """Takes no more texts than there are."""

    def forward(self, *args, **kwargs):
        if len(args[0]) > len(TEXTS):
            raise RuntimeError("too many\nat once")
        return self.inner(*args, **kwargs)


def test_where_an_expanded_batch_cannot_run_the_reason_is_given(fresh):
    lm, corpus, metric = corpus_of("llama", fresh)
    lm.model.model.layers[2].mlp = Full(lm.model.model.layers[2].mlp).eval()
    want, got, because = swept(lm, every_kind("llama")[:4], corpus, metric)
    assert because == "one by one: an expanded batch cannot be run (too many)"
    assert_swept(got, want)


class Own(nn.Module):
    """One layer without a number, under a model that is read by a function of the user's own."""

    main_input_name = "x"

    def __init__(self, count):
        super().__init__()
        self.config = None
        make = lambda: mh.MultiHeadAttention(30, 6, batch_first=True)  # noqa: E731
        self.attention = nn.ModuleList([make() for _ in range(count)]) if count > 1 else make()

    def forward(self, x):
        for each in self.attention if isinstance(self.attention, nn.ModuleList) else [self.attention]:
            x = x + each(x, need_weights=False)[0]
        return x


@pytest.mark.parametrize(("count", "words"), [(1, "attention is in no numbered block"), (2, "attends by itself")])
def test_a_model_whose_blocks_cannot_be_told_says_so(count, words, fresh):
    model = Own(count).eval()
    with mh.tap(model) as state, torch.no_grad():
        model(torch.randn(2, 5, 30, generator=fresh))

    spec = ModelSpec("own", "Own", tuple(state.sites.values()), 30, None, None, 0, "float32")
    blocks, why = blocks_of(model, spec)
    assert blocks == [] and words in why


# ------------------------------------------------------------------------------------------------------- left as it was


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_the_model_is_left_as_it_was(name, fresh):
    lm, corpus, metric = corpus_of(name, fresh)
    before, reading = hook_counts(lm.model), metric.read(output(lm, corpus[0], metric), corpus[0])
    sweep(lm, every_kind(name), corpus, metric, texts=CORPUS)
    after = metric.read(output(lm, corpus[0], metric), corpus[0])
    assert hook_counts(lm.model) == before and not OPEN.taps
    assert torch.equal(reading.nan_to_num(), after.nan_to_num())


def output(lm, batch, metric):
    body = lm.model if metric.head else lm.model.base_model
    with torch.no_grad():
        return body(**batch.inputs)


@pytest.mark.parametrize("calls", [2, 5, 9])
def test_also_after_an_exception(calls, fresh):
    """In the plain pass, in the check, among the plans."""
    lm, corpus, metric = corpus_of("llama", fresh)
    before, seen = hook_counts(lm.model), []

    def fail(*_):
        seen.append(1)
        if len(seen) == calls:
            raise KeyboardInterrupt

    hook = lm.model.model.layers[2].mlp.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        sweep(lm, every_kind("llama"), corpus, metric, texts=CORPUS, num_tokens=20)
    hook.remove()
    assert hook_counts(lm.model) == before and not OPEN.taps


def test_nan_is_refused_with_the_metrics_name_and_progress_counts_batches(fresh):
    lm, corpus, _ = corpus_of("llama", fresh)
    bad = choose_metric(lm, lambda outputs, inputs: outputs.logits.sum((1, 2)) * torch.nan)[0]
    with pytest.raises(StatisticError, match="gave NaN or infinity for the model as it is"):
        sweep(lm, [Plan(Ablate("L1H1"))], corpus, bad)
    lm, corpus, metric = corpus_of("llama", fresh, 30)
    told = []
    sweep(lm, [Plan(Ablate("L1H1"))], corpus, metric, progress=lambda done, of: told.append((done, of)))
    count = len(corpus)
    assert told == [(at + 1, count) for at in range(count)] and count > 1
