"""A text with pictures as the inputs of a vision-language model, and where each picture lies among its tokens.

The model's own processor makes the inputs. Each picture becomes a run of image tokens, in whose places the language
model reads the patches of the picture. `Tokens.images` says which positions those are and how they lie in the picture:
row by row, as many rows and columns as `image_grid_thw` says (Qwen; less the patches that are merged), else as the
tokens divide the picture that the processor made into square patches (LLaVA, PaliGemma). Where that is not so (a
picture cut into several crops, tokens that are not patches), the model is refused with the reason: a head drawn on the
wrong patches would be worse than none.

A text without image tokens is put into the processor's chat template, with the pictures before it and the beginning of
an answer behind it; where the processor has no template, the image tokens are put before the text. An answer is added
token by token behind that, as if the model had written it: what stands before it reads none of it.

What is recorded is the language model. Its vision tower runs too, and is a model of pictures by itself:
`mh.load(lm.model.model.vision_tower, processor=lm.processor)`.
"""

# device: facts about texts and pictures are the host's

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ModelError, RecordingError, TextError
from manyheads.inputs.batch import Batch, Side, named_texts
from manyheads.inputs.generation import finished_texts, require_writer
from manyheads.inputs.media.pictures_and_sounds import ImageLike, listed, picture_of, processed
from manyheads.inputs.pieces import documents_of, rarity_of
from manyheads.models import PICTURES, TEXT, LoadedModel, sense_of, takes
from manyheads.models.weights import image_token_of
from manyheads.spec import VISION
from manyheads.texts import ImageSpan, data_seed

TOWER = "not kept: it is a model of pictures by itself"
LATENTS = ("perceiver", "resampler", "qformer", "q_former")  # modules whose tokens are no patches of a picture


def pictures_in_text(
    lm: LoadedModel, text: object, image: ImageLike | Sequence[ImageLike], answer: str | None = None
) -> tuple[Batch, dict[str, object]]:
    """One text with its pictures, and an answer behind it; how the prompt was made.

    Errors: ModelError for a model or a processor that does not read both together, or whose image tokens are not the
    patches of one picture each; TextError, RecordingError; those of `picture_of`.
    """
    processor = _processor(lm)
    documents = documents_of(text)
    if len(documents) > 1:
        raise RecordingError(
            f"{len(documents)} texts came with image=: give one text, with all its pictures in a list."
        )
    pictures = [picture_of(picture) for picture in listed(image)]
    prompt, how = _prompt(lm, processor, documents[0].text, len(pictures))
    begins = getattr(processor.tokenizer, "bos_token", None)
    # A chat template that writes the first token is not to get it twice.
    options = {"add_special_tokens": False} if begins and prompt.startswith(begins) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a processor's own arrays, about which nobody here can do anything
        inputs = processed(lm, processor, "this text with pictures", text=[prompt], images=pictures, **options)
    inputs.pop("labels", None)
    begin = inputs["input_ids"].shape[1]
    if answer is not None:
        documents_of(answer)
        ids = (lm.tokenizer or processor.tokenizer)(answer, add_special_tokens=False)["input_ids"]
        inputs = extended(lm, inputs, ids)
    ids, limit = inputs["input_ids"], lm.max_positions
    if limit is not None and ids.shape[1] > limit:
        raise TextError(
            f"the text has {ids.shape[1]:,} tokens, most of them from pictures, but {lm.name} has {limit:,} positions: "
            f"give smaller or fewer pictures."
        )
    images = _images(lm, inputs, len(pictures))
    seed = data_seed(b"".join([ids.cpu().numpy().tobytes(), *(picture.tobytes() for picture in pictures)]))
    batch = Batch(inputs, (0,), _tokens(lm, ids, images, begin), seeds=(seed,), skips=VISION)
    return batch, {"prompt": how, "vision tower": TOWER}


def written(lm: LoadedModel, batch: Batch, count: int, options: Mapping[str, object]) -> Batch:
    """The same with `count` tokens that the model writes behind it as the answer, fewer if it ends before.

    They are read again in one pass, whose rows are those of the generation. Errors: RecordingError, ModelError.
    """
    require_writer(lm, count, options)
    begin = batch.inputs["input_ids"].shape[1]
    ids, stops = finished_texts(lm, batch.inputs, begin, count, options)
    inputs = extended(lm, batch.inputs, ids[0, begin : int(stops[0])].tolist())
    return replace(batch, inputs=inputs, main=_tokens(lm, inputs["input_ids"], batch.tokens.images[0], begin))


def extended(lm: LoadedModel, inputs: Mapping[str, Tensor], ids: Sequence[int]) -> dict[str, Tensor]:
    """The inputs with more tokens behind them, which are text. Errors: TextError for none."""
    if not ids:
        raise TextError("the answer has no tokens: give a text that the tokenizer knows.")
    first = inputs["input_ids"]
    image = first == image_token_of(lm.model.config)
    fill = {"input_ids": torch.tensor([list(ids)]).to(first), "attention_mask": 1}
    # In two families token_type_ids means two things: 1 is a picture's token (Gemma 3), or what is written, and is not
    # read by what stands before it (PaliGemma).
    types = inputs.get("token_type_ids")
    if types is not None:
        fill["token_type_ids"] = int(not bool(types[image].any()))
    of_tokens = {name: value for name, value in inputs.items() if value.shape == first.shape}
    more = {name: value.new_zeros(1, len(ids)) + fill.get(name, 0) for name, value in of_tokens.items()}
    return {**inputs, **{name: torch.cat([value, more[name]], 1) for name, value in of_tokens.items()}}


def _processor(lm: LoadedModel) -> Any:
    """The model's processor of text and pictures. Errors: ModelError where there is none."""
    whose = f"{lm.name} ({type(lm.model).__name__})"
    if sense_of(lm.model) != TEXT or takes(lm.model) != PICTURES:
        kind = "text" if sense_of(lm.model) == TEXT else sense_of(lm.model)
        raise ModelError(f"{whose} reads {kind} alone: give exactly one of texts, image= and audio=, or another model.")
    if image_token_of(lm.model.config) is None:
        raise ModelError(
            f"{whose} reads no picture among the tokens of a text (its config names no image token): use record_call "
            f"with all its inputs, or take a tower alone."
        )
    if any(part in path.lower() for path, _ in lm.model.named_modules() for part in LATENTS):
        raise ModelError(
            f"{whose} makes tokens from a picture that are not its patches (a resampler's): nothing can be drawn. Use "
            f"record_call with all its inputs."
        )
    if getattr(lm.processor, "tokenizer", None) is None or getattr(lm.processor, "image_token", None) is None:
        had = "no processor" if lm.processor is None else f"a {type(lm.processor).__name__}"
        raise ModelError(
            f"{whose} has {had}, and a text with pictures needs one of both: save it beside the model "
            f"(transformers.AutoProcessor), or load with processor=. How it was loaded: {lm.because}."
        )
    return lm.processor


def _prompt(lm: LoadedModel, processor: Any, text: str, count: int) -> tuple[str, str]:
    """The text with an image token for each picture, and how it came by them. Errors: TextError."""
    token, num_tokens = processor.image_token, text.count(processor.image_token)
    if num_tokens:
        if num_tokens != count:
            raise TextError(
                f"the text has {num_tokens} image tokens ({token}) for {count} pictures: give one for each."
            )
        return text, "as it was given, with its image tokens"
    if getattr(processor, "chat_template", None) or getattr(processor.tokenizer, "chat_template", None):
        owner = processor if getattr(processor, "chat_template", None) else processor.tokenizer
        content = [{"type": "image"}] * count + [{"type": "text", "text": text}]
        prompt = owner.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        if prompt.count(token) == count:
            return prompt, "in the processor's chat template, pictures first"
        raise TextError(
            f"the processor's chat template makes {prompt.count(token)} image tokens for {count} pictures: write the "
            f"whole prompt yourself, with {token} where each picture stands."
        )
    around = [getattr(lm.model.config, f"vision_{end}_token_id", None) for end in ("start", "end")]
    before, behind = ("" if id is None else processor.tokenizer.convert_ids_to_tokens(id) for id in around)
    return f"{before}{token}{behind}" * count + text, "image tokens put before the text: there is no chat template"


def _tokens(lm: LoadedModel, ids: Tensor, images: tuple[ImageSpan, ...], begin: int) -> Side:
    """The text's tokens; those of pictures are special, and named by place: "r0c3", or "1:r0c3" of several pictures."""
    padded = named_texts(lm, ids.cpu(), torch.zeros(1, dtype=torch.long), torch.tensor([ids.shape[1]]))
    tokens = replace(padded.tokens, images=(images,), answers=(begin,))
    pieces = list(tokens.pieces[0])
    for number, image in enumerate(images):
        pieces[image.span] = [f"{number}:" * (len(images) > 1) + name for name in image.grid.names]
    tokens = replace(tokens, pieces=(tuple(pieces),))
    if tokens.special is None:
        return padded._replace(tokens=tokens)
    words = ids.cpu()[~tokens.image]
    size = max(lm.spec.vocab_size or 0, 1 + int(ids.max()))
    rarity, because = rarity_of(torch.bincount(words, minlength=size), "the text's")
    tokens = replace(
        tokens,
        special=tokens.special | tokens.image,
        texts=(str(lm.required_tokenizer.decode(words.tolist(), skip_special_tokens=True)),),
        rarity=rarity[ids.cpu()],
        rarity_because=because,
    )
    return padded._replace(tokens=tokens)


def _images(lm: LoadedModel, inputs: Mapping[str, Tensor], count: int) -> tuple[ImageSpan, ...]:
    """Where each picture lies among the tokens. Errors: ModelError where its tokens are not its patches, one run."""
    places = (inputs["input_ids"][0].cpu() == image_token_of(lm.model.config)).nonzero()[:, 0].tolist()
    grids: list[tuple[int, int, tuple[int, int]]]  # rows, columns and size in pixels of each picture
    if "image_grid_thw" in inputs:
        of_pictures = getattr(lm.processor, "image_processor", None)
        patch, merged = (int(getattr(of_pictures, name)) for name in ("patch_size", "merge_size"))
        crops = inputs["image_grid_thw"].tolist()
        if len(crops) != count or any(frames != 1 for frames, _, _ in crops):
            raise _refusal(lm, f"{count} pictures are cut into {len(crops)} crops, or read as films")
        grids = [(rows // merged, columns // merged, (rows * patch, columns * patch)) for _, rows, columns in crops]
    else:
        pixels, num_tokens = inputs["pixel_values"], len(places)
        shape = tuple(pixels.shape[1:] if pixels.ndim == 5 and len(pixels) == 1 else pixels.shape)
        if len(shape) != 4 or shape[0] != count:
            raise _refusal(
                lm, f"{count} pictures are cut into several crops each (pixel_values of {tuple(pixels.shape)})"
            )
        height, width = shape[2:]
        patch = math.isqrt(height * width * count // max(num_tokens, 1))
        if not patch or height % patch or width % patch or (height // patch) * (width // patch) * count != num_tokens:
            raise _refusal(
                lm, f"{num_tokens} image tokens are not a grid of square patches of {count} x {height} x {width}"
            )
        grids = [(height // patch, width // patch, (height, width))] * count
    images, used = [], 0
    for rows, columns, size in grids:
        patches = places[used : used + rows * columns]
        if len(patches) < rows * columns or patches[-1] - patches[0] != len(patches) - 1:
            raise _refusal(lm, f"the {rows} x {columns} patches of a picture are not a single run of tokens")
        images.append(ImageSpan(patches[0], rows, columns, size))
        used += len(patches)
    if used != len(places):
        raise _refusal(lm, f"{len(places)} image tokens are not the {used} patches of its pictures")
    return tuple(images)


def _refusal(lm: LoadedModel, why: str) -> ModelError:
    return ModelError(
        f"{lm.name} ({type(lm.model).__name__}) with {type(lm.processor).__name__}: {why}. Which patch a "
        f"token is cannot be told, so nothing is recorded. Switch such crops off in the processor, or use record_call."
    )
