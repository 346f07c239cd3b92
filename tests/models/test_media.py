"""Models of pictures and sounds: how they are loaded with their processors, and what they refuse to read."""

import numpy as np
import pytest
from PIL import Image

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError, RecordingError, ShapeError, TextError
from manyheads.models.loading.modality import PICTURES as OF_PICTURES
from manyheads.models.loading.modality import SOUNDS, TEXT, sense_of
from manyheads.recording.media import grid_of
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.models.tinymedia import (
    PICTURES,
    RATE,
    saved,
    some_picture,
    some_sound,
    tiny_vit,
    tiny_wav2vec2,
    tiny_whisper,
    wide,
)

# ------------------------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_model_of_pictures_needs_no_tokenizer_and_has_a_spec(name, seeing):
    lm = seeing(name)
    assert lm.tokenizer is None and lm.processor is not None and sense_of(lm.model) == OF_PICTURES
    assert f"pictures by {type(lm.processor).__name__}, which lies beside it" in lm.because
    heads = [(site.num_heads, site.qk_dim) for site in lm.spec.sites if site.stack == ""]
    assert heads == ([(2, 6)] * 2 + [(3, 8)] * 2 if name == "swin" else [(3, 8)] * 2)


def test_models_of_sounds_have_a_spec_with_and_without_a_processor(whisper, wav2vec2, fresh):
    for lm in (whisper(), mh.load(tiny_whisper())):
        assert lm.spec.shape == {"encoder": (3, 3), "decoder": (3, 3), "cross": (3, 3)}
    for lm in (wav2vec2(), mh.load(tiny_wav2vec2())):
        assert lm.spec.shape == {"": (3, 3)} and sense_of(lm.model) == SOUNDS
    assert whisper().processor.feature_size == 16


def test_without_a_processor_inputs_must_be_ones_own(fresh, tmp_path):
    lm = mh.load(saved(tmp_path / "bare", tiny_vit(draw(fresh)), None))
    assert lm.processor is None and lm.spec.shape == {"": (3, 3)}
    with pytest.raises(ModelError, match=r"has no processor to make inputs of pictures: .* load it with\s+processor="):
        mh.record(lm, image=some_picture(fresh))
    (tmp_path / "bare" / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuch"}')
    broken = mh.load(tmp_path / "bare")
    assert broken.processor is None and "its processor of pictures cannot be used" in broken.because
    given = mh.load(tmp_path / "bare", processor=wide())
    assert grid_of(mh.record(given, image=some_picture(fresh))).rows == 3
    assert mh.load(tmp_path / "bare", processor=False).processor is None
    with pytest.raises(ModelError, match="processor=3 is not a processor of pictures or sounds: give one in hand"):
        mh.load(tmp_path / "bare", processor=3)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_exactly_one_of_texts_image_and_audio(seeing, fresh):
    lm, picture = seeing("vit"), some_picture(fresh)
    with pytest.raises(TextError, match="give a text, or a list of texts. Or give one of image= and audio="):
        mh.record(lm)
    with pytest.raises(RecordingError, match="exactly one of texts, image= and audio=: texts and image= came"):
        mh.record(lm, "a cat", image=picture)
    with pytest.raises(RecordingError, match="sampling_rate= and transcript= are for sounds"):
        mh.record(lm, image=picture, sampling_rate=RATE)


def test_a_model_says_what_it_reads(seeing, whisper, fresh):
    with pytest.raises(ModelError, match=r"vit \(ViTModel\) reads pictures, not text: give image=, or another"):
        mh.record(seeing("vit"), "a cat")
    with pytest.raises(ModelError, match=r"reads pictures, not sounds: give image="):
        mh.record(seeing("vit"), audio=some_sound(fresh, 0.1), sampling_rate=RATE)
    with pytest.raises(ModelError, match=r"reads sounds, not pictures: give audio="):
        mh.record(whisper(), image=some_picture(fresh))
    bert = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    assert sense_of(bert.model) == TEXT
    with pytest.raises(ModelError, match=r"BertModel.* reads text, not pictures: give it a text"):
        mh.record(bert, image=some_picture(fresh))
    with pytest.raises(ModelError, match=r"'vit' is a str, not a loaded model: load it first, as mh.load\('vit'\)"):
        mh.record("vit", image=some_picture(fresh))


def test_what_is_no_picture_is_refused_in_a_line(seeing, fresh, tmp_path):
    lm = seeing("vit")
    (tmp_path / "notes.txt").write_text("no picture")
    good = tmp_path / "good.png"
    Image.fromarray(some_picture(fresh)).save(good)
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:-400])
    for what, error, said in [
        (tmp_path / "none.png", FileAccessError, r"cannot read .*none\.png: there is no such file"),
        (tmp_path, FileAccessError, "it is a folder"),
        (
            tmp_path / "notes.txt",
            FileAccessError,
            r"notes\.txt is not a picture that can be read: give a \.png or \.jpg",
        ),
        (tmp_path / "cut.png", FileAccessError, r"cut\.png is a damaged picture"),
        (
            np.zeros((3, 24, 40), np.uint8),
            ShapeError,
            r"\(3, 24, 40\) is not a picture: .*permute\(1, 2, 0\) puts them",
        ),
        (np.zeros((24, 40), np.uint8), ShapeError, r"\(24, 40\) is not a picture: give \[height, width, 3\]\.$"),
        (np.full((24, 40, 3), 7.0), ShapeError, "float64 values from 7.0 to 7.0 cannot be read: give uint8"),
        (np.full((24, 40, 3), np.nan), ShapeError, "cannot be read"),
        (7, RecordingError, "a int is not a picture: give a path, a PIL image, or an array"),
        ([], RecordingError, "the list is empty: give at least one"),
    ]:
        with pytest.raises(error, match=said):
            mh.record(lm, image=what)


def test_what_is_no_sound_is_refused_in_a_line(whisper, wav2vec2, fresh, tmp_path):
    lm, sound = whisper(), some_sound(fresh, 0.2)
    (tmp_path / "a.wav").write_bytes(b"RIFF no sound")
    for what, rate, error, said in [
        (sound, None, RecordingError, "does not say how fast it is: give sampling_rate=, the model hears 16,000"),
        (sound, 44_100, RecordingError, r"has 44,100 samples a second, the model hears 16,000: resample it first"),
        (np.zeros((2, 9), np.float32), RATE, ShapeError, r"shape \(2, 9\), is not a sound: give one channel"),
        (np.full(9, np.nan), RATE, ShapeError, "NaN or infinite samples"),
        (tmp_path / "none.wav", None, FileAccessError, r"none\.wav: there is no such file"),
        (
            tmp_path / "a.wav",
            None,
            FileAccessError,
            r"cannot read .*a\.wav as a sound .*: save it as a \.wav of 16-bit",
        ),
        (some_sound(fresh, 2.5), RATE, RecordingError, "sound 0 is 2.5 s long, and whisper hears at most 2 s at once"),
    ]:
        with pytest.raises(error, match=said):
            mh.record(lm, audio=what, sampling_rate=rate)
    tokens = mh.load(lm.model, processor=lm.processor, tokenizer=tiny_tokenizer(special_tokens=False))
    with pytest.raises(TextError, match="transcript= is empty"):
        mh.record(tokens, audio=sound, sampling_rate=RATE, transcript=" ")
    with pytest.raises(TextError, match="the transcript has 61 tokens, but the decoder of .* has 50: shorten it"):
        mh.record(tokens, audio=sound, sampling_rate=RATE, transcript="cat " * 60)
    unmasked = wav2vec2(mask=False)
    with pytest.raises(RecordingError, match="different lengths, .* would hear the padding: record them one by one"):
        mh.record(unmasked, audio=[sound, sound[:900]], sampling_rate=RATE)
    with pytest.raises(RecordingError, match="transcript= is for a model with a decoder"):
        mh.record(unmasked, audio=sound, sampling_rate=RATE, transcript="a cat")
