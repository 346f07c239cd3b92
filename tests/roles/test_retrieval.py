"""Retrieval: equal to loops over the attentions that transformers' own greedy generation returns; built heads known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

import manyheads as mh
from manyheads.errors import ModelError, RecordingError, StatisticError, TextError
from manyheads.roles.probes import retrieval_scores
from manyheads.roles.probes.retrieval import _Watched, rouge1_recall
from tests.models.eager import draw, implementation
from tests.models.tiny import VOCAB_SIZE, WORDS, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_t5, tiny_tokenizer
from tests.refusals import refuses

MAKERS = {"gpt2": tiny_gpt2, "llama": tiny_llama, "gemma2": tiny_gemma2}
QUESTION = "what is it ?"


def loaded(model, special_tokens=False):
    return mh.load(model, tokenizer=tiny_tokenizer(special_tokens=special_tokens))


def some_words(fresh, count, words=WORDS):
    return " ".join(words[int(torch.randint(len(words), (1,), generator=fresh))] for _ in range(count))


def ids_of(lm, text):
    return lm.tokenizer(text, add_special_tokens=False)["input_ids"]


def by_hand(lm, prompt, begin, end, count):
    """Each head's hits in the needle as a set of (step, place), and the even share of each step."""
    with implementation(lm.model, "eager"), torch.no_grad():
        got = lm.model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_attentions=True, return_dict_in_generate=True,
        )  # fmt: skip
    new = got.sequences[0, len(prompt) :].tolist()
    hits, even = {}, {}
    for step, (token, layers) in enumerate(zip(new, got.attentions, strict=True)):
        for layer, weights in enumerate(layers):
            row = weights[0, :, -1]
            first = len(prompt) + step - row.shape[-1]  # keys that a sliding cache has shed
            for head in range(len(row)):
                at = int(row[head].argmax()) + first
                if begin <= at < end and prompt[at] == token:
                    hits.setdefault((layer, head), []).append((step, at))
            sees = [first + j for j in range(row.shape[-1]) if row[:, j].max() > 0]
            even[layer] = even.get(layer, 0) + sum(begin <= j < end and prompt[j] == token for j in sees) / len(sees)
    return new, hits, even


@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in MAKERS if name != "gpt2")]
)
def test_scores_are_those_of_the_models_own_greedy_generation(name, fresh):
    found, tries = 0, 0
    while not found and tries < 9:  # where a random model looks is seldom what it writes, so there are five words
        tries += 1
        lm, words = loaded(MAKERS[name](seed=draw(fresh), vocab_size=10)), WORDS[:5]
        context, needle, question, lead = (some_words(fresh, n, words) for n in (13, 14, 3, 2))
        lengths, depths, count = (7, 11), (0.4,), 7
        options = {"lengths": lengths, "depths": depths, "generate": count, "min_recall": -1.0, "lead": lead}
        with implementation(lm.model, "eager" if name == "gemma2" else None):
            each = [retrieval_scores(lm, context, needle, question, variant=v, **options) for v in ("code", "paper")]
        size, heads = len(ids_of(lm, needle)), lm.spec.layers[0].num_heads
        trials = [(length, depth) for length in lengths for depth in depths]
        assert [(trial.length, trial.depth) for trial in each[0].trials] == trials and each[0].num_counted == 2
        wanted = {"code": [], "paper": []}
        for (length, depth), trial in zip(trials, each[0].trials, strict=True):
            place, text = round(depth * length), ids_of(lm, context)
            before = [*text[:place], *ids_of(lm, lead)]
            prompt, begin = [*before, *ids_of(lm, needle), *text[place:length], *ids_of(lm, question)], len(before)
            new, hits, even = by_hand(lm, prompt, begin, begin + size, count)
            assert trial.response == lm.tokenizer.decode(new, skip_special_tokens=True) and trial.num_steps == count
            counts = np.array([[len(hits.get((i, h), [])) for h in range(heads)] for i in range(3)])
            places = np.array([[len({at for _, at in hits.get((i, h), [])}) for h in range(heads)] for i in range(3)])
            np.testing.assert_allclose(trial.score, counts.ravel() / size)
            np.testing.assert_allclose(trial.chance, np.repeat([even[i] for i in range(3)], heads) / size)
            wanted["code"].append(counts.ravel() / size)
            wanted["paper"].append(places.ravel() / size)
            found += counts.sum()
        for got in each:
            np.testing.assert_allclose(got.scores.score, np.mean(wanted[got.variant], 0))
            assert np.isnan(got.scores.low).all() and (got.scores.num_queries == 2 * count).all()
        assert (each[1].scores.chance <= each[0].scores.chance + 1e-12).all()
    assert found, "nothing was retrieved: this test saw nothing"


@pytest.mark.parametrize("name", MAKERS)
def test_the_top_key_of_every_head_and_step_is_that_of_the_models_own_attentions(name, fresh):
    lm, count = loaded(MAKERS[name](seed=draw(fresh))), 5
    prompt = torch.randint(5, 100, (19,), generator=fresh)
    watched = _Watched(prompt, 0, 3)
    with implementation(lm.model, "eager" if name == "gemma2" else None):
        written = watched.write(lm, count)
    with implementation(lm.model, "eager"), torch.no_grad():
        got = lm.model.generate(
            prompt[None], max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_attentions=True, return_dict_in_generate=True,
        )  # fmt: skip
    assert written == got.sequences[0, 19:].tolist()
    for step, layers in enumerate(got.attentions):
        for weights, steps in zip(layers, watched.steps.values(), strict=True):
            row = weights[0, :, -1]
            best, top = row.topk(2).values.unbind(-1), row.argmax(-1) + 19 + step - row.shape[-1]
            clear = best[0] > 1.001 * best[1]  # else rounding may rank them either way
            assert (steps[step].top == top)[clear].all()
            assert steps[step].visible == int((row > 0).any(0).sum())


# --------------------------------------------------------------------------------------------------------- as was built


class CopierConfig(PreTrainedConfig):
    model_type = "copier"


class Copier(PreTrainedModel, GenerationMixin):
    """Head 0 looks at what followed an earlier copy of the last token, head 1 right before that, head 2 at the first
    token. The model writes the token that head 0 looks at."""

    config_class = CopierConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(torch.tensor(80.0))
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **_):
        tokens = nn.functional.one_hot(input_ids, self.config.vocab_size).float()
        before = tokens.roll(1, 1)
        before[:, 0] = 0
        first = torch.zeros_like(tokens)
        first[:, 0] = 1
        q = torch.stack([tokens, tokens, torch.ones_like(tokens)], 1) * self.scale
        k = torch.stack([before, tokens, first], 1)
        out = nn.functional.scaled_dot_product_attention(q, k, tokens[:, None].expand_as(k), is_causal=True, scale=1.0)
        return CausalLMOutput(logits=out[:, 0])


@pytest.fixture
def copier():
    model = Copier(CopierConfig(vocab_size=VOCAB_SIZE, num_hidden_layers=1, eos_token_id=None, pad_token_id=0)).eval()
    model.generation_config.use_cache = False  # it reads the whole text at every step
    return loaded(model)


NEEDLE = "seven red bird ran over water"


def test_a_head_that_copies_the_needle_scores_what_it_copies_and_no_other_head_does(copier, fresh):
    """The question ends with the needle's first word: five of its six words are left to write."""
    plain = some_words(fresh, 40, WORDS[:20])  # words of which the needle has none
    got = retrieval_scores(copier, plain, NEEDLE, "who , seven", lengths=(10, 30), depths=(0.0, 0.5), generate=5)
    assert got.num_counted == 4 and {trial.response for trial in got.trials} == {"red bird ran over water"}
    assert got.scores["L0H0"].score == pytest.approx(5 / 6) and got.scores["L0H0"].num_queries == 20
    assert got.scores.score[1:].tolist() == [0, 0]
    assert got.scores.top(1)[0].head.index == 0 and got.scores["L0H0"].chance < 0.1
    assert got.words == "4 of 4 trials counted; scored as Wu et al.'s code has it"
    first = got.trials[0]
    assert first.recall == pytest.approx(5 / 6) and (first.length, first.depth, first.num_steps) == (10, 0.0, 5)


def test_a_needle_written_twice_counts_twice_in_their_program_and_once_in_their_paper(copier):
    options = {"lengths": (8,), "depths": (0.5,), "generate": 12}
    needle = "bird fish bird fish bird fish"  # after bird it writes fish, and after fish bird, round and round
    both = [
        retrieval_scores(copier, "a b c d , ; the of in on", needle, "? bird", variant=v, **options)
        .scores["L0H0"]
        .score
        for v in ("code", "paper")
    ]
    assert both[0] == pytest.approx(12 / 6) and both[1] <= 1


def test_trials_whose_answer_is_not_in_the_needle_do_not_count(copier, fresh):
    plain = some_words(fresh, 30, WORDS[:20])
    got = retrieval_scores(copier, plain, NEEDLE, "who ?", lengths=(12,), depths=(0.5, 1.0), generate=4)
    assert got.num_counted == 0 and np.isnan(got.scores.score).all() and not got.scores.top()
    assert got.words.startswith("0 of 2 trials counted; the other answers had 50% of the needle's words or fewer")
    some = retrieval_scores(copier, plain, NEEDLE, "seven", lengths=(12,), depths=(0.5,), generate=2)
    assert some.trials[0].recall == pytest.approx(2 / 6) and some.num_counted == 0
    less = retrieval_scores(copier, plain, NEEDLE, "seven", lengths=(12,), depths=(0.5,), generate=2, min_recall=0.3)
    assert less.num_counted == 1 and less.scores["L0H0"].score == pytest.approx(2 / 6)


def test_an_answer_stops_at_the_models_end_token(copier, fresh):
    plain = some_words(fresh, 30, WORDS[:20])
    copier.model.generation_config.eos_token_id = ids_of(copier, "ran")[0]
    got = retrieval_scores(copier, plain, NEEDLE, "seven", lengths=(12,), depths=(0.5,), min_recall=0.0)
    assert got.trials[0].response == "red bird ran" and got.trials[0].num_steps == 3
    assert copier.model.generation_config.eos_token_id == ids_of(copier, "ran")[0]


def test_what_a_tokenizer_adds_stands_before_the_context_and_recall_is_the_share_of_the_needles_words(fresh):
    lm = loaded(tiny_gpt2(seed=draw(fresh)), special_tokens=True)
    shown = []
    lm.spec  # noqa: B018
    hook = lm.model.get_input_embeddings().register_forward_pre_hook(lambda _, args: shown.append(args[0][0].tolist()))
    retrieval_scores(lm, "the cat sat", NEEDLE, QUESTION, lengths=(3,), depths=(0.5,), generate=1)
    hook.remove()
    words = ids_of(lm, "the cat"), ids_of(lm, NEEDLE), ids_of(lm, "sat"), ids_of(lm, QUESTION)
    assert shown[0] == [lm.tokenizer.cls_token_id, *(i for part in words for i in part)]
    assert rouge1_recall("The best thing, the BEST!", "the best of all the things") == pytest.approx(3 / 5)
    assert rouge1_recall("a b", "") == 0 and rouge1_recall("a b", "b a a c") == 1


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"variant": "book"}, StatisticError, r"variant='book' is not a way to count: use one of code, paper"),
        ({"lengths": ()}, StatisticError, r"lengths=\(\).*give lengths of 1 token or more"),
        ({"depths": (0.5, 1.5)}, StatisticError, r"depths=\(0.5, 1.5\): .*depths from 0 \(the start\) to 1"),
        ({"lengths": (9,)}, TextError, r"a length of 9 tokens was asked for, but contexts has 3: give more text"),
        ({"needle": " "}, TextError, r"needle ' ' has no token: give at least one word"),
        ({"generate": 0}, RecordingError, r"generate=0: give how many tokens to write"),
        ({"generate": 90}, TextError, r"has 96 positions: ask for lengths up to 0"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_says_why(options, error, said, fresh):
    asked = {"contexts": "the cat sat", "needle": NEEDLE, "question": QUESTION, "lengths": (3,), **options}
    refuses(error, said, retrieval_scores, loaded(tiny_gpt2(seed=draw(fresh))), **asked)


def test_models_that_do_not_write_one_text_are_refused(fresh):
    asked = ("the cat sat", NEEDLE, QUESTION)
    with pytest.raises(ModelError, match=r"BertModel .* cannot generate: it has no language-model head"):
        retrieval_scores(loaded(tiny_bert(seed=draw(fresh))), *asked, lengths=(3,))
    with pytest.raises(
        ModelError, match=r"reads in an encoder and writes in a decoder: retrieval heads belong to " "models"
    ):
        retrieval_scores(loaded(tiny_t5(seed=draw(fresh))), *asked, lengths=(3,))
    bare = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=False, name="bare")
    with pytest.raises(ModelError, match=r"bare has no tokenizer, so it cannot be asked anything"):
        retrieval_scores(bare, *asked, lengths=(3,))
