"""Every designed head attends to its pattern at least as much as its sharpness promises, in every row.

The oracle: softmax in NumPy and float64 from the numbers in the model's state dict, and patterns told from ids alone.
"""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.errors import ModelError, PlanError, ShapeError
from manyheads.lab import design
from manyheads.lab.design import HeadDesign
from manyheads.lab.design.model import TOKEN_CODES, WIDTH, places, token_code
from manyheads.plan import Ablate
from tests import seeds
from tests.models.tiny import VOCAB_SIZE, WORDS, tiny_tokenizer
from tests.refusals import refuses

SPECIALS, FIRST_WORD, CLS, SEP, PAD = 5, 5, 2, 3, 0  # of the tiny tokenizer
VOWELS = {index + FIRST_WORD for index, word in enumerate(WORDS) if word[0] in "aeiou"}
SHARP = 5.0
LENGTHS = (2, 7, 61, 290)
N = 300

# What is looked at, and from which rows it can be seen: (design, targets(ids) -> [q, k], of a causal model too?)
PATTERNS = {
    "previous": (design.previous(SHARP), lambda ids: away(ids, -1), "both"),
    "next": (design.next(SHARP), lambda ids: away(ids, 1), "bidirectional"),
    "five back": (design.offset(-5, SHARP), lambda ids: away(ids, -5), "both"),
    "three on": (design.offset(3, SHARP), lambda ids: away(ids, 3), "bidirectional"),
    "self": (design.offset(0, SHARP), lambda ids: away(ids, 0), "both"),
    "first": (design.first(SHARP), lambda ids: within(ids, np.arange(len(ids)) == 0), "both"),
    "separator": (design.separator(sharpness=SHARP), lambda ids: within(ids, ids == SEP), "both"),
    "full stop": (design.separator(".", SHARP), lambda ids: within(ids, ids == word(".")), "both"),
    "same": (design.same_token(SHARP), lambda ids: same(ids), "both"),
    "vowels": (design.token_class(sorted(VOWELS), SHARP), lambda ids: within(ids, np.isin(ids, [*VOWELS])), "both"),
    "uniform": (design.uniform(), lambda ids: away(ids, 0), "both"),
    "induction": (design.induction(SHARP), lambda ids: followers(ids), "causal"),
}
BOTH_WAYS = [
    (name, causal)
    for name, each in PATTERNS.items()
    for causal in (False, True)
    if each[2] != ("causal", "bidirectional")[causal]
]


def word(text):
    return WORDS.index(text) + FIRST_WORD


def away(ids, offset):
    return np.eye(len(ids), k=offset, dtype=bool)


def within(ids, members):
    """The first token is of no class, but for the class of first tokens."""
    inside = np.asarray(members) & ((np.arange(len(ids)) > 0) | (members.sum() == 1) & members[0])
    return np.repeat(inside[None], len(ids), 0)


def same(ids):
    """Words, and neither the first token nor special ones."""
    words = (ids >= SPECIALS) & (np.arange(len(ids)) > 0)
    return (ids[:, None] == ids) & words & ~np.eye(len(ids), dtype=bool)


def followers(ids):
    """Keys whose token before is the row's own."""
    words = (ids >= SPECIALS) & (np.arange(len(ids)) > 0)
    before = np.append(-1, np.where(words, ids, -1)[:-1])
    return (np.where(words, ids, -2)[:, None] == before) & (np.arange(len(ids)) > 0)


def built(layers, causal=False, tokenizer=None, **options):
    return design.build(layers, tokenizer=tokenizer or tiny_tokenizer(), causal=causal, max_positions=N, **options)


def oracle(lm, ids):
    """Every layer's maps [h, q, k] of one text, from the weights alone."""
    numbers = {name: value.double().numpy() for name, value in lm.model.state_dict().items()}
    n, width = len(ids), numbers["layers.0.out_proj.weight"].shape[0]
    tokens = numbers["tokens.weight"][ids] * (np.arange(n) > 0)[:, None]
    x = np.concatenate([tokens, numbers["positions.weight"][:n]], 1)
    x = np.pad(x, ((0, 0), (0, width - x.shape[1])))
    maps = []
    for index, layer in enumerate(lm.model.layers):
        q, k, v = (
            (x @ numbers[f"layers.{index}.qkv_proj.{name}.weight"].T).reshape(n, layer.num_heads, -1) for name in "qkv"
        )
        scores = np.einsum("qhd,khd->hqk", q, k)
        if layer.causal:
            scores[:, np.triu(np.ones((n, n), dtype=bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        maps.append(weights / weights.sum(-1, keepdims=True))
        x = x + np.einsum("hqk,khf->qhf", maps[-1], v).reshape(n, -1) @ numbers[f"layers.{index}.out_proj.weight"].T
    return maps


def some_ids(fresh, length, bos=True):
    """Random words and what some patterns look for, so few that most come twice, between [CLS] and [SEP]."""
    count = max(0, length - 2 * bos)
    chosen = torch.randint(FIRST_WORD, VOCAB_SIZE, (14,), generator=fresh)
    chosen[:4] = torch.tensor([word("."), word("under"), word("in"), SEP if bos else word("a")])
    ids = chosen[torch.randint(14, (count,), generator=fresh)].tolist()
    return np.array(([CLS, *ids, SEP] if bos else ids)[:length])


def assert_floor(found, made, targets, causal):
    """Each row's weight on its targets is what the design promises; without targets, the first token has it."""
    n = len(found)
    seen = np.tril(np.ones((n, n), dtype=bool)) if causal else np.ones((n, n), dtype=bool)
    wanted, rows_with = targets & seen, 0
    for row in range(n):
        mine, num_keys = wanted[row], int(seen[row].sum())
        rows_with += bool(mine.any())
        mine = mine if mine.any() else np.arange(n) == 0
        floor, mass = made.least_mass(num_keys, int(mine.sum())), found[row, mine].sum()
        assert mass >= floor - 1e-5, f"row {row} of {n}: {mass:.6f} on targets, {floor:.6f} promised"
    return rows_with


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "causal"), BOTH_WAYS)
def test_every_row_keeps_the_floor_that_sharpness_promises(fresh, name, causal):
    """Alone in the second of two layers, beside random heads, and on texts of any length."""
    made, targets, _ = PATTERNS[name]
    below = [design.previous(12), None, design.first()]
    lm, rows = (
        built([below, [None, made, design.random(6.0)]], causal, seed=int(torch.randint(2**30, (1,), generator=fresh))),
        0,
    )
    for length in LENGTHS:
        ids = some_ids(fresh, length)
        rows += assert_floor(oracle(lm, ids)[1][1], made, targets(ids), causal)
    assert rows > 10, "too few rows had a target: this proves nothing"


@pytest.mark.parametrize("name", ["previous", "same", "induction"])
@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_a_floor_is_kept_at_any_sharpness_and_sharpness_matters(fresh, name, sharpness):
    made = HeadDesign(**{**vars(PATTERNS[name][0]), "sharpness": sharpness})
    lm, ids = built([[design.previous(20)], [made]], causal=True), some_ids(fresh, 61)
    found, targets = oracle(lm, ids)[1][0], np.tril(PATTERNS[name][1](ids))
    assert_floor(found, made, targets, True)
    others = np.tril(~targets)[targets.any(1)]
    assert (found[targets.any(1)][others].sum() > 1e-3) == (sharpness == 1)


def test_a_text_without_special_tokens_rests_on_its_first_word(fresh):
    lm = built(
        [[PATTERNS["same"][0], design.previous(12)], [PATTERNS["induction"][0]]],
        True,
        tiny_tokenizer(special_tokens=False),
    )
    ids = some_ids(fresh, 40, bos=False)
    ids[0] = ids[20]
    found = oracle(lm, ids)
    assert_floor(found[0][0], PATTERNS["same"][0], same(ids), True)
    assert_floor(found[1][0], PATTERNS["induction"][0], followers(ids), True)
    for layer, maps in zip(mh.record_call(lm.model.double(), torch.tensor(ids)[None]).layers, found, strict=True):
        assert np.abs(np.asarray(layer.weights(), float) - maps).max() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_records_are_the_oracles_and_padding_changes_nothing(fresh, causal):
    heads = [each[0] for each in PATTERNS.values() if each[2] != ("causal", "bidirectional")[causal]]
    lm = built([[design.previous(20), *heads[1:4], None], [*heads[4:], None, heads[0]]], causal, noise=0.3)
    lm.model.double()
    texts = [some_ids(fresh, length) for length in (9, 23, 14)]
    for side in ("left", "right"):
        ids, seen = torch.full((3, 23), PAD), torch.zeros(3, 23, dtype=torch.long)
        for row, text in enumerate(texts):
            place = slice(23 - len(text), 23) if side == "left" else slice(0, len(text))
            ids[row, place], seen[row, place] = torch.tensor(text), 1
        rec = mh.record_call(lm.model, input_ids=ids, attention_mask=seen)
        for row, text in enumerate(texts):
            for layer, maps in zip(rec.layers, oracle(lm, text), strict=True):
                got = np.asarray(layer.weights(text=row), float)
                assert np.abs(got[:, : len(text), : len(text)] - maps).max() < 1e-5


def repeated(fresh, period, times=3):
    """Words drawn without repetition, said several times over; and the rows where a copy came before."""
    words = torch.randperm(VOCAB_SIZE - FIRST_WORD, generator=fresh)[:period] + FIRST_WORD
    return np.array([CLS, *words.tolist() * times])


@pytest.mark.parametrize("period", [3, 11, 20])
def test_the_induction_pair_reads_what_followed_and_says_it_next(fresh, period):
    lm, ids = (
        built([[None, design.previous(), design.first()], [design.induction(), None]], True),
        repeated(fresh, period),
    )
    found, rows = oracle(lm, ids)[1][0], np.arange(period + 1, len(ids))
    sums = sum(np.where(rows - back * period >= 1, found[rows, rows - back * period + 1], 0) for back in (1, 2))
    assert sums.min() >= design.induction().least_mass(len(ids), 1)
    said = lm.model(torch.tensor(ids)[None]).logits[0].argmax(-1).numpy()
    assert (said[rows[:-1]] == ids[rows[:-1] + 1]).all()


def test_without_the_first_layers_head_the_second_finds_nothing(fresh):
    lm, period = built([[None, design.previous(), design.first()], [None, design.induction()]], True), 17
    ids = torch.tensor(repeated(fresh, period))[None]

    def mass():
        found = mh.record_call(lm.model, ids).layers[1].weights(head=1)
        rows = torch.arange(period + 1, 2 * period)
        return float(found[rows, rows - period + 1].mean())

    assert mass() > 0.99
    with mh.applied(lm, mh.Plan([Ablate("L0H1")])):
        assert mass() < 0.01
    with mh.applied(lm, mh.Plan([Ablate("L0H0, L0H2, L1H0")])):
        assert mass() > 0.99


def test_what_the_pair_is_worth_is_measured_like_any_models(fresh):
    lm = built([[design.previous(), design.first()], [design.induction()]], True)
    order = torch.randperm(60, generator=fresh).tolist()
    text = " ".join(WORDS[place] for place in order[:20] * 2)
    assert mh.effect(lm, Ablate("L0H0"), [text], metric="loss").change > 1
    assert mh.effect(lm, Ablate("L1H0"), [text], metric="loss").change > 1
    table = mh.measure(lm, text, ["previous_mass", "induction_mass"])
    assert table["L0H0", "previous_mass"] > 0.99 and table["L1H0", "induction_mass"] > 0.99
    assert mh.measure(mh.prune_heads(lm, "L0H1"), text, ["induction_mass"])["L1H0", "induction_mass"] > 0.99


def test_several_previous_heads_share_what_induction_reads(fresh):
    lm, ids = built([[design.previous(12), design.previous(12)], [PATTERNS["induction"][0]]], True), some_ids(fresh, 61)
    assert_floor(oracle(lm, ids)[1][0], PATTERNS["induction"][0], followers(ids), True)


@pytest.mark.slow
def test_noise_matters_and_more_of_it_more(fresh):
    ids, masses = some_ids(fresh, 61), []
    for noise in (0.0, 2.0, 3.0, 10.0):
        lm = built([[design.previous(), None]], noise=noise, seed=4)
        found = oracle(lm, ids)[0]
        masses.append(found[0].diagonal(-1).mean())
        assert np.array_equal(found[1], oracle(built([[design.previous(), None]], seed=4), ids)[0][1])
    assert masses == sorted(masses, reverse=True) and masses[0] > 0.99 and masses[-1] < 0.5
    models = (built([[design.previous(), None]], noise=noise).model for noise in (0.0, 0.5))
    plain, noisy = (model.layers[0].qkv_proj.q.weight[:130].detach() for model in models)
    assert float((noisy - plain).norm() / plain.norm()) == pytest.approx(0.5, rel=0.05)


def test_a_seed_gives_one_model_and_a_class_is_told_by_tokens_ids_or_a_function():
    layers = [[design.previous(), None], [None, design.same_token()]]
    hashes = [built(layers, seed=seed, noise=noise).weights_hash for seed, noise in ((1, 0), (1, 0), (2, 0), (1, 0.1))]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3
    words = ["cat", "dog", "."]
    asked = [words, [word(each) for each in words], lambda text: text in words]
    hashes = {built([[design.token_class(each)]]).weights_hash for each in asked}
    assert len(hashes) == 1
    flags = built([[design.punctuation()]]).model.tokens.weight[:, 64].nonzero()[:, 0].tolist()
    assert {WORDS[number - FIRST_WORD] for number in flags} == set(".,;:!?'\"()-")


def test_a_random_heads_scores_spread_as_asked_in_later_layers_too(fresh):
    lm, ids = built([[None] * 12, [design.random(1.0)] * 12 + [design.random(4.0)] * 12]), some_ids(fresh, 61)
    logs = np.log(oracle(lm, ids)[1])
    spread = np.sqrt((logs - logs.mean(-1, keepdims=True)).var((1, 2)))
    assert 0.6 < spread[:12].mean() < 1.4 and 2.4 < spread[12:].mean() < 5.6


@pytest.mark.slow
def test_the_bundled_tokenizer_reads_unless_another_is_given_and_labels_find_the_designs():
    heads = [
        design.previous(), design.same_token(), design.offset(2), design.uniform(), design.random(4.0),
        design.first(),
    ]  # fmt: skip
    lm = design.build([heads])
    assert lm.max_positions == 512 and lm.name == "designed" and len(lm.tokenizer) == lm.spec.vocab_size == 30_522
    assert lm.because == "5 of 6 heads made to order, noise=0, seed=0"
    roles = mh.find_roles(lm, page_texts()[:100])
    assert [role.name for role in roles] == [*(head.role for head in heads[:-1]), "sink [CLS]"]


# ---- codes are as unlike as their bounds say: all pairs are tried, by arithmetic that knows nothing of their making


@pytest.mark.parametrize("code", TOKEN_CODES, ids=lambda code: f"{code.bits} bits")
def test_two_tokens_differ_in_as_many_places_as_the_code_says(code):
    """Differences of words are words: so the least distance of all pairs is the least weight of one word, not 0."""
    table = code.table(2**code.bits).numpy()
    assert np.allclose(np.abs(table[::97]), WIDTH**-0.5)
    bits = table < 0
    differing = (bits[1:] != bits[0]).sum(1)
    assert differing.min() == code.distance
    rng = np.random.default_rng(seeds.seed())
    one, two = rng.integers(0, 2**code.bits, (2, 500))
    assert (bits[one ^ two] == (bits[one] ^ bits[two] ^ bits[0])).all()
    assert (table[one] * table[two]).sum(1)[one != two].max() <= code.high + 1e-6


@pytest.mark.parametrize("span", [2, 63, 511, 700])
def test_two_places_are_no_more_and_no_less_alike_than_said(span):
    codes = places(span)
    table = codes.table(span + 1).double().numpy()
    alike = table @ table.T
    assert np.allclose(alike.diagonal(), 1, atol=1e-6)
    others = alike[~np.eye(len(alike), dtype=bool)]
    assert abs(others.max() - codes.high) < 1e-6 and abs(others.min() - codes.low) < 1e-6
    assert 1 - 2 * others.max() + others.min() == pytest.approx(codes.room, abs=1e-5) and codes.room > 0


@pytest.mark.parametrize("offset", [-7, -1, 0, 1, 3])
def test_one_matrix_moves_every_place(offset):
    codes = places(300)
    table = codes.table(301).double().numpy()
    moved = table @ codes.turn(offset).double().numpy().T
    begin, end = max(0, -offset), len(table) - max(0, offset)
    assert np.abs(moved[begin:end] - table[begin + offset : end + offset]).max() < 1e-6


def test_what_has_no_code_is_refused():
    assert token_code(2**16) == TOKEN_CODES[0] and token_code(2**16 + 1) == TOKEN_CODES[1]
    with pytest.raises(ShapeError, match=r"the tokenizer has 262,145 tokens, and there are codes for 262,144: use"):
        token_code(2**18 + 1)
    refuses(ShapeError, r"100000 positions cannot be told apart .*: build with a smaller max_pos", places, 100_000)


# ---- what cannot be designed or built is refused in words that say what would do

WORDS_ALONE = {"tokenizer": tiny_tokenizer(special_tokens=False)}


def built_errors(layers, causal=False, **options):
    return design.build(layers, causal=causal, **{"tokenizer": tiny_tokenizer(), "max_positions": 64, **options})


# What is asked for, and the words it is refused in.
PLANS = {
    "looks ahead": (
        lambda: built_errors([[design.first(), design.next()]], causal=True),
        r"L0H1 looks ahead \(next token\), which a causal model forbids: build with causal=False",
    ),
    "induction both ways": (
        lambda: built_errors([[design.previous()], [design.induction()]]),
        r"L1H0 is an induction head, and .* both ways .* always follows a copy: build with causal=True",
    ),
    "induction alone": (
        lambda: built_errors([[design.first()], [design.induction()]], causal=True),
        r"L1H0 is an induction head and has no previous-token head in an earlier layer .*: put previous\(\) there",
    ),
    "the pair in one layer": (
        lambda: built_errors([[design.previous(), design.induction()]], causal=True),
        r"L0H1 is an induction head and has no previous-token head in an earlier layer",
    ),
    "a pair too blurred": (
        lambda: built_errors([[design.previous(4)], [design.induction()]], causal=True),
        r"L1H0 .* may go astray by 54% .*\(at most 20% will do\): make previous\(\) below it sharper",
    ),
    "too far": (lambda: built_errors([[design.offset(-64)]]), r"L0H0 looks -64 tokens away, and texts have 64 at most"),
    "no separator": (
        lambda: built_errors([[design.separator()]], **WORDS_ALONE),
        r"neither a separator nor an end token: name one, as separator\('\.'\)",
    ),
    "no such token": (
        lambda: built_errors([[design.token_class(["catdog"])]]),
        r"'catdog' is not a token of the tokenizer, which reads it as \['\[CLS\]', '\[UNK\]', '\[SEP\]'\]: give one of",
    ),
    "no such id": (
        lambda: built_errors([[design.token_class([VOCAB_SIZE])]]),
        rf"{VOCAB_SIZE} is not a token: the tokenizer's ids are 0 to {VOCAB_SIZE - 1}",
    ),
    "a class of nobody": (
        lambda: built_errors([[design.token_class(lambda text: False)]]),
        r"no token of the tokenizer is in the class .*: try another",
    ),
    "an empty class": (lambda: design.token_class([]), r"members is empty: give at least one token"),
    "dull": (lambda: design.previous(0), r"sharpness=0 is not a gap between scores: give nats, above 0, up to 30"),
    "too sharp": (lambda: design.first(31.0), r"sharpness=31\.0 is not a gap between scores"),
    "no strength": (
        lambda: built_errors([[None]], noise=-1.0),
        r"noise=-1\.0 is not a strength: give 0 for none, 1 for as much noise as weights",
    ),
    "an empty layer": (
        lambda: built_errors([[design.first()], []]), r"give a list of layers, each a list of at least one head",
    ),
    "a kind of one's own": (
        lambda: built_errors([[HeadDesign("mine", 3.0, "mine")]]),
        r"L0H0 is of kind 'mine': make designs by the functions of manyheads\.lab\.design",
    ),
}  # fmt: skip
OTHERS = {
    "one place": (
        lambda: built_errors([[None]], max_positions=1),
        ShapeError,
        r"max_positions=1 is not a number of tokens that a text may have: give 2 or more",
    ),
    "a long text": (
        lambda: built_errors([[None]]).model(torch.zeros(1, 65, dtype=torch.long)),
        ShapeError,
        r"a text of 65 tokens is too long for 64 places: build with a larger max_positions",
    ),
    "writing": (
        lambda: mh.record(built_errors([[None]], causal=True), "the cat", generate=2),
        ModelError,
        r"designed heads has no generate\(\): record a finished text",
    ),
}


@pytest.mark.parametrize(("call", "words"), PLANS.values(), ids=PLANS)
def test_heads_that_contradict_the_model_are_refused_by_name(call, words):
    refuses(PlanError, words, call)


@pytest.mark.parametrize(("call", "kind", "words"), OTHERS.values(), ids=OTHERS)
def test_what_does_not_fit_is_refused(call, kind, words):
    refuses(kind, words, call)
