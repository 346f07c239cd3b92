"""What is to be read, as a description without a model: texts, pictures, sounds, token ids or ready tensors.

    mh.Inputs("What is this?", image="cat.png", answer="a cat")
    mh.Inputs(reviews, labels=stars, long="truncate")

Every verb that runs a model takes one, or what one is made of: a text, a list of texts, a list of ready inputs.
`inputs.read` makes of it what one model reads.
"""

# device: a description is the host's

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from manyheads.base import one_of
from manyheads.errors import RecordingError, TextError
from manyheads.inputs.media.pictures_and_sounds import AudioLike, ImageLike
from manyheads.inputs.pieces import LONG_TEXTS, Long
from manyheads.texts import Document

TextLike = str | Document | tuple[str, str]
"""A text, a text with what is known of it, or, in a list, a pair (source, target) for an encoder-decoder."""

Labels = Sequence[int] | Int[Tensor, "text"] | Int[ndarray, "text"]
"""A class number for each text, picture or sound, from 0."""

EITHER = ("texts", "image=", "audio=", "ids=", "ready=")  # what is read: one of them


@dataclass(frozen=True, eq=False)
class Inputs:
    """What is to be read: one of `texts`, `image`, `audio`, `ids` and `ready`; or one text and its `image` together.

    - texts: a text or several; of an encoder-decoder a text may be a pair (source, target), in a list, whose target
      the decoder reads: without one it reads the source again. `measure` also takes a corpus, or any iterator.
    - long: how a text beyond the model's positions is read: in "windows" (overlapping), cut ("truncate"), or refused
      ("whole").
    - labels: a class number for each, which the metrics "class_loss" and "class_error" of `effect` read.
    - image: a path, a PIL image, an array [height, width, 3] (uint8, or float 0 to 1), or a list of them. With one
      text it is for a vision-language model (LLaVA, PaliGemma, Qwen-VL) whose processor takes both.
    - answer: read behind a text with pictures as if the model had written it.
    - audio: a path of a .wav, an array [samples] with its `sampling_rate`, or a list of them.
    - transcript: what a decoder beside an encoder of sounds (Whisper) reads after its start tokens.
    - ids: texts as token ids, which are read as they are.
    - ready: batches that are tensors already, each a mapping of the model's argument names.
    """

    texts: TextLike | Iterable[TextLike] | None = None
    _: KW_ONLY
    long: Long = "windows"
    labels: Labels | None = None
    answer: str | None = None
    transcript: str | None = None
    image: ImageLike | Sequence[ImageLike] | None = None
    audio: AudioLike | Sequence[AudioLike] | None = None
    sampling_rate: int | None = None
    ids: Sequence[Sequence[int]] | None = None
    ready: Sequence[Mapping[str, Tensor]] | None = None

    @staticmethod
    def of(given: InputsLike) -> Inputs:
        """What a verb was given, as a description. Errors: TextError, RecordingError for parts that do not fit."""
        if isinstance(given, Inputs):
            inputs = given
        elif isinstance(given, Sequence) and not isinstance(given, str) and given and isinstance(given[0], Mapping):
            inputs = Inputs(ready=given)  # type: ignore[arg-type]  # the other items are looked at where they are read
        else:
            inputs = Inputs(given)  # type: ignore[arg-type]  # no mappings
        passed = [name for name in EITHER if getattr(inputs, name.removesuffix("=")) is not None]
        if inputs.answer is not None and passed != ["texts", "image="]:
            raise RecordingError("answer= is for a text with pictures: give it with a text and image=.")
        if not passed:
            raise TextError("texts is a NoneType: give a text, or a list of texts. Or give one of image= and audio=.")
        if len(passed) > 1 and passed != ["texts", "image="]:
            ready = "" if set(passed) <= set(EITHER[:3]) else " (or ids=, or ready=)"
            raise RecordingError(f"give exactly one of texts, image= and audio={ready}: {' and '.join(passed)} came.")
        if inputs.audio is None and (inputs.sampling_rate is not None or inputs.transcript is not None):
            raise RecordingError("sampling_rate= and transcript= are for sounds: give them with audio=.")
        one_of("long", inputs.long, LONG_TEXTS, TextError, "is not a way to read a long text")
        return inputs

    @property
    def count(self) -> int:
        """How many texts, pictures, sounds or batches are given; 1 if it is not a list."""
        senses = (self.texts, self.image, self.audio, self.ids, self.ready)
        items = next(items for items in senses if items is not None)
        return len(items) if isinstance(items, Sequence) and not isinstance(items, str) else 1

    @property
    def has_media(self) -> bool:
        """Whether pictures or sounds are read."""
        return self.image is not None or self.audio is not None


InputsLike = Inputs | TextLike | Iterable[TextLike] | Sequence[Mapping[str, Tensor]]
"""What every verb takes: a description, a text, several texts, or ready inputs, each a batch."""
