"""Sounds: weights are the model's own, every position is the moment that it is said to be.

Oracles: transformers' eager attentions on the processor's inputs; and the model itself, a part of whose input was
changed: only that part's position may follow.
"""

import wave

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import ModelError, RecordingError
from manyheads.models.inputs.media import sounds_of
from manyheads.recording.media import frames_of
from tests.models.eager import SHARP, assert_near, eager_maps, implementation
from tests.models.tiny import tiny_tokenizer
from tests.models.tinymedia import (
    RATE,
    some_sound,
)


def test_whisper_has_its_three_stacks_exactly(whisper, fresh):
    lm = whisper(tokenizer=tiny_tokenizer(special_tokens=False))
    sounds = [some_sound(fresh, 1.3), some_sound(fresh, 0.7)]
    rec = mh.record(lm, audio=sounds, sampling_rate=RATE, transcript="the cat sat on the mat")
    features = lm.processor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    ids = rec.stacks["decoder"][0].tokens.ids
    assert ids[0].tolist() == [2, *lm.tokenizer("the cat sat on the mat")["input_ids"]]
    with implementation(lm.model, "eager"), torch.no_grad():
        own = lm.model(input_features=features, decoder_input_ids=ids, output_attentions=True)
    wanted = {"encoder": own.encoder_attentions, "decoder": own.decoder_attentions, "cross": own.cross_attentions}
    assert float(own.cross_attentions[0].max()) > SHARP and list(rec.stacks) == list(wanted)
    for stack, maps in wanted.items():
        for layer, one in zip(rec.stacks[stack], maps, strict=True):
            for text in range(2):
                assert_near(layer.weights(text=text), one[text])
    assert rec.provenance["decoder"] == "a transcript that was given"
    assert rec.stacks["encoder"][0].tokens.pieces[0][:3] == ("0.00s", "0.02s", "0.04s")


def test_wav2vec2_sounds_of_two_lengths_are_each_as_long_as_they_are(wav2vec2, fresh):
    lm, sounds = wav2vec2(), [some_sound(fresh, 1.25), some_sound(fresh, 0.6)]
    rec = mh.record(lm, audio=sounds, sampling_rate=RATE)
    frames = frames_of(rec)
    assert (frames.count, frames.seconds_per_frame, frames.window_seconds) == (62, 0.02, 0.025)
    assert rec.tokens.lengths.tolist() == [62, 29] and frames.sound_seconds == (1.25, 0.6)
    inputs = lm.processor(sounds, sampling_rate=RATE, return_tensors="pt", padding=True)
    maps = eager_maps(lm.model, **inputs)
    assert max(float(own.max()) for own in maps) > SHARP
    for layer, own in zip(rec.layers, maps, strict=True):
        for text, length in enumerate((62, 29)):
            assert_near(layer.weights(text=text), own[text, :, :length, :length])
    alone = mh.record(lm, audio=sounds[1], sampling_rate=RATE)
    for one, many in zip(alone.layers, rec.layers, strict=True):
        assert_near(many.weights(text=1), one.weights())


def test_frames_hear_the_samples_that_they_say(wav2vec2, fresh):
    """Its own samples, from the first to the last, change what the convolutions make of a frame; others leave it."""
    lm, sound = wav2vec2(), torch.from_numpy(some_sound(fresh, 0.5))[None]
    frames = frames_of(mh.record(lm, audio=sound[0].numpy(), sampling_rate=RATE))
    with torch.no_grad():
        before = lm.model.feature_extractor(sound)
        for frame in (0, 7, frames.count - 1):
            first = round(frames.start(frame) * RATE)
            last = first + round(frames.window_seconds * RATE) - 1
            for at, matters in ((first - 1, False), (first, True), (last, True), (last + 1, False)):
                if 0 <= at < sound.shape[1]:
                    changed = sound.clone()
                    changed[0, at] += 5.0
                    after = lm.model.feature_extractor(changed)
                    moved = float((after - before)[0, :, frame].abs().max())
                    assert (moved > 0) == matters, (frame, at, moved)


def test_generation_beside_a_sound_equals_the_recording_of_the_finished_text(whisper, fresh):
    lm = whisper()
    sounds = [some_sound(fresh, 1.3), some_sound(fresh, 0.7)]
    rec = mh.record(lm, audio=sounds, sampling_rate=RATE, generate=9)
    ids = rec.stacks["decoder"][0].tokens.ids
    assert ids.shape[1] <= 10 and ids[:, 0].tolist() == [2, 2]
    features = lm.processor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    whole = mh.record_call(lm.model, input_features=features, decoder_input_ids=ids.clamp_min(0), use_cache=False)
    for stack in ("encoder", "decoder", "cross"):
        for got, want in zip(rec.stacks[stack], whole.stacks[stack], strict=True):
            for text in range(2):
                length = int(got.lengths[text])
                assert_near(got.weights(text=text)[:, :length], want.weights(text=text)[:, :length, : got.k.shape[2]])
    assert rec.provenance["generated"] == {"tokens": 9} and "plain generation" in rec.provenance["decoder"]
    with torch.no_grad():
        scores = lm.model(input_features=features, decoder_input_ids=ids.clamp_min(0)).logits
    assert int(scores[0, 0].argmax()) == int(ids[0, 1])
    with pytest.raises(RecordingError, match=r"generate=50 after 1 tokens is more than the 50 .*: ask for at most 49"):
        mh.record(lm, audio=sounds, sampling_rate=RATE, generate=50)


def test_without_a_transcript_the_decoder_reads_its_start_alone(whisper, fresh):
    lm = whisper()
    rec = mh.record(lm, audio=some_sound(fresh, 0.5), sampling_rate=RATE)
    assert rec.stacks["decoder"][0].tokens.ids.tolist() == [[2]] and rec.stacks["cross"][0].weights().shape == (
        3,
        1,
        100,
    )
    assert rec.provenance["decoder"] == "its start tokens alone"
    with pytest.raises(ModelError, match="has no tokenizer, so it cannot read a transcript"):
        mh.record(lm, audio=some_sound(fresh, 0.5), sampling_rate=RATE, transcript="the cat")


@pytest.mark.parametrize(("width", "dtype", "scale"), [(1, np.uint8, 127), (2, "<i2", 32767), (4, "<i4", 2**31 - 1)])
def test_a_wav_is_its_samples(width, dtype, scale, fresh, tmp_path):
    """Two channels, of which the mean is heard; three bytes are tested by themselves below."""
    sound = some_sound(fresh, 0.1).clip(-1, 1)
    stored = (sound * scale + (128 if width == 1 else 0)).round().astype(dtype)
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((2, width, RATE, 0, "NONE", ""))
        file.writeframes(np.stack([stored, stored], 1).tobytes())
    (got,) = sounds_of(path, None, RATE)
    assert got.dtype == np.float32 and float(np.abs(got - sound).max()) < 2 / min(scale, 2**20)


def test_three_bytes_a_sample_are_read_too(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 3, RATE, 0, "NONE", ""))
        file.writeframes(b"\x00\x00\x40\x00\x00\xc0\xff\xff\x7f")
    assert sounds_of(tmp_path / "a.wav", None, RATE)[0].tolist() == pytest.approx([0.5, -0.5, 1], abs=1e-6)


def test_int16_and_a_list_of_numbers_are_sounds(fresh):
    sound = (some_sound(fresh, 0.01).clip(-1, 1) * 32767).astype(np.int16)
    assert sounds_of(sound, RATE, RATE)[0].tolist() == (sound / np.float32(32768)).tolist()
    assert len(sounds_of([0.0, 0.5, 1.0], RATE, RATE)) == 1 and len(sounds_of([sound, sound], RATE, RATE)) == 2
