"""Nothing here goes to the network by itself: whatever is done with files on this machine asks no other."""

import socket

import pytest

import manyheads as mh
from manyheads.cli.main import main
from manyheads.errors import ModelError
from tests.models.tiny import save_tiny, tiny_bert, tiny_tokenizer

LOCAL = ("127.0.0.1", "localhost", "::1")


@pytest.fixture
def asked(monkeypatch):
    """Whom this process has asked for, but itself. Nobody answers."""
    found = []

    def refuse(place):
        if not isinstance(place, tuple) or place[0] not in LOCAL:
            found.append(place)
            raise OSError(101, "Network is unreachable")

    connect, look_up = socket.socket.connect, socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", lambda self, place: refuse(place) or connect(self, place))
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: refuse((host,)) or look_up(host, *rest, **more)
    )
    return found


@pytest.mark.slow  # a process that does everything
def test_models_recordings_tables_sizes_and_lessons_ask_nobody(asked, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = str(save_tiny(tiny_bert(max_position_embeddings=600), tmp_path / "bert", tiny_tokenizer()))
    lm = mh.load(folder)
    mh.record(lm, "the cat sat").save("cat.heads")
    assert mh.open_recording("cat.heads").layers[0].q is not None
    mh.measure(lm, ["the cat sat", "a dog"]).save("t.parquet")
    mh.prune_heads(lm, "L0H1")
    for arguments in (
        ["look", "the cat", "--model", folder, "--html", "look.html"],
        ["size", "llama-2-70b"],
        ["learn", "masks", "--answer", "causal-cells", "36"],
        ["train", "--json"],
    ):
        assert main(arguments) == 0, capfd.readouterr().err
    assert asked == []


def test_a_name_that_is_not_here_is_asked_for_at_the_hub_and_only_there(asked, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        mh.load("somebody/no-such-model")
    assert asked and {place[0] for place in asked} == {"huggingface.co"}
