"""How often the host waits for the device: a few times a layer, however long the text and however many tiles."""

import pytest

import manyheads as mh
from manyheads.recording import Sinks
from manyheads.recording.exact_map import one_pass
from tests.device.conftest import MAKERS, each
from tests.device.simulated import counted_waits
from tests.models.eager import draw
from tests.models.tiny import WORDS, tiny_tokenizer

# A layer: what the guard saw, large scores or answers, value norms, tops.
WAITS = {"record": 2, "default": 2, "all": 5, "logits": 2}
ONCE = 12  # for a batch, whatever the number of layers: its inputs are sent, each of its masks is read
READ = {
    "record": lambda lm, text: mh.record(lm, text),
    "default": lambda lm, text: mh.measure(lm, text, sinks=Sinks(first=True)),
    "all": lambda lm, text: mh.measure(lm, text, "all", sinks=Sinks(first=True)),
    "logits": lambda lm, text: mh.measure(lm, text, "max_logit"),
}


def waits_of(what, name, num_layers, seed, length):
    config = {"n_layer": num_layers, "n_positions": 128} if name == "gpt2" else {"num_hidden_layers": num_layers}
    config |= {} if name == "gpt2" else {"max_position_embeddings": 128}
    model = MAKERS[name](seed=seed, **config).to("cuda")
    lm = mh.load(model, tokenizer=tiny_tokenizer(special_tokens=False))
    assert len(lm.spec.sites) == num_layers  # found out by a forward pass of its own, once for each model
    text = " ".join(WORDS[index * 7 % len(WORDS)] for index in range(length))
    with counted_waits() as waits:
        READ[what](lm, text)
    return waits


@pytest.mark.parametrize("what", each(WAITS, "all"))
@pytest.mark.parametrize("name", each(["llama", "gpt2", "gemma2"], "gemma2"))
@pytest.mark.turns(2)
def test_the_host_waits_a_few_times_a_layer(name, what, fresh, monkeypatch):
    # Small tiles: 60 tokens are then ten of tiles a layer, and a wait in each of them would show.
    monkeypatch.setattr(one_pass, "ACCELERATOR_CELLS", 6 * 16 * 16)
    monkeypatch.setattr(one_pass, "ACCELERATOR_KEYS", 16)
    seed = draw(fresh)
    few, many = (waits_of(what, name, layers, seed, 60) for layers in (2, 4))
    a_layer = {place: (many[place] - few[place]) / 2 for place in many if many[place] > few[place]}
    assert sum(a_layer.values()) <= WAITS[what], a_layer
    assert few.total() <= ONCE + 2 * WAITS[what], few
