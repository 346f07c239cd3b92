"""`manyheads size`: the page at 100 columns, the document, the picture, and what is refused. No model is loaded."""

from __future__ import annotations

import json
import re

import pytest

from manyheads.cli.main import main
from manyheads.cli.terminal.console import WIDTH
from manyheads.sizing import PRESETS

from .conftest import Ran, assert_refused

BLOCKS = "▏▎▍▌▋▊▉█"


@pytest.fixture
def sized(capsys):
    """`sized("gpt2", "--json")`: the command in this process."""

    def runner(*arguments: str) -> Ran:
        code = main(["size", *arguments])
        return Ran(code, *capsys.readouterr())

    return runner


def row_of(ran: Ran, start: str) -> str:
    (row,) = [line for line in ran.lines if line.startswith(start)]
    return row


def test_without_arguments_it_shows_the_preset_that_people_compare_to(sized):
    ran = sized()
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[0] == (
        "Llama 2 70B: 68.98 B parameters, 138 GB in fp16, 320 KiB of cache a token: 10 GiB at 8 × 4k."
    )
    assert "64 heads of 128 on 8 KV heads (GQA-8)" in ran.lines[1]
    assert all(part in row_of(ran, "feed-forward") for part in ("56.37 B", "81.7%", "3.69 PFLOP", "901.94 GFLOP"))
    assert row_of(ran, "  80 ×").split()[2:5] == ["GQA-8", "855.65", "M"], "equal layers are drawn once"
    assert row_of(ran, "  80 ×").split()[6:] == ["150.99", "M", "704.64", "M", "16.38", "k"]
    heading = row_of(ran, "                  a token, KiB")
    assert heading.split("  ")[-1].strip() == "FLOPs a byte" and "kept, GiB  kept, GB" in heading
    assert row_of(ran, "MHA").split()[1:4] == ["2,560", "80.00", "85.90"]
    assert row_of(ran, "GQA-8 (as it is)").split()[4:8] == ["320", "10.00", "10.74", "██"]
    assert row_of(ran, "MQA").split()[1:4] == ["40", "1.25", "1.34"]
    assert "FLOPs: a multiply and an add are 2; matrix products only. Scores and values: only visible pairs" in ran.out
    assert "8.00 FLOPs a byte" in ran.out


@pytest.mark.parametrize(("batch", "titles"), [
    ((), ("8 texts of 4,096", "one more token each")),
    (("--batch", "1"), ("1 text of 4,096", "one more token")),
    (("--batch", "3"), ("3 texts of 4,096", "one more token each")),
])  # fmt: skip
def test_the_headline_and_every_table_speak_of_the_same_batch(sized, batch, titles):
    """Of 32 layers of 4,096, 14,336 wide in between: a multiply and an add for each weight, token and text."""
    ran, count = sized("llama-3-8b", *batch), int(titles[0].split()[0])
    headline = f"{count} × 4k." if count > 1 else " at 4k."
    assert headline in ran.lines[0] and f"KV cache of {titles[0]} tokens" in ran.out
    groups = [part.strip() for part in row_of(ran, "             │ parameters").split("│")]
    assert groups[2:] == list(titles)
    wide = 2 * 3 * 32 * 4096 * 14_336 * count
    assert row_of(ran, "feed-forward").split("│")[2].split()[0] == f"{wide * 4096 / 1e12:.2f}"
    each = row_of(ran, "all ").split("│")[3].split()[:2]
    (said,) = re.findall(r"One more token of .*?: ([\d.]+) (\wFLOP)", ran.out)
    assert float(each[0]) == pytest.approx(float(said[0]), rel=1e-3) and each[1] == said[1]
    assert row_of(ran, "feed-forward").split("│")[3].split()[0] == f"{wide / 1e9:.2f}"


@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in PRESETS if name != "gpt2")]
)
def test_every_page_keeps_to_its_width_and_has_bars(sized, name):
    ran = sized(name)
    assert ran.code == 0 and ran.lines[0].startswith(f"{PRESETS[name].title}: ")
    assert max(map(len, ran.lines)) <= WIDTH
    assert any(block in ran.out for block in BLOCKS)


def test_the_points_of_a_column_stand_below_each_other(sized):
    """So that of two figures with the same unit the longer is the larger."""
    for name in ("deepseek-v3", "gemma-3-27b", "gpt2"):
        rows = [line.split("│") for line in sized(name).lines if line.count("│") == 3][2:]
        for column in zip(*(cells[1:] for cells in rows), strict=True):
            assert len({cell.index(".") for cell in column if "." in cell}) == 1
        cache = [line for line in sized(name).lines if line.startswith(("MHA ", "GQA", "MQA", "MLA"))]
        assert len(cache) > 1 and len({tuple(m.start() for m in re.finditer(r"\.", line[:45])) for line in cache}) == 1


def test_what_fits_is_a_row_a_memory(sized):
    ran = sized("llama-3.1-8b", "--batch", "1", "--dtype", "bf16")
    assert row_of(ran, "24 GB GPU").split()[3:] == ["5.54", "42,262", "10"]
    assert row_of(ran, "141 GB GPU").split()[3:] == ["110.84", "845,638*", "206"]
    assert "* past the 131,072 positions that llama-3.1-8b is made for." in " ".join(ran.lines)
    assert "A Mac gives its GPU 75% of its memory unless told otherwise." in " ".join(ran.lines)
    large = sized("llama-3.1-405b")
    assert row_of(large, "80 GB GPU").split()[3:] == ["756.6", "GB", "short"] and "-" not in row_of(large, "24 GB GPU")


def test_one_memory_is_answered_in_a_sentence(sized):
    ran = sized("llama-3.1-8b", "--fits", "24GB", "--batch", "1")
    assert "1 text of 4,096 tokens fits into 24.00 GB (16.06 GB of weights, 536.9 MB of cache, 2.40 GB" in ran.out
    assert "feed-forward" not in ran.out and row_of(ran, "24GB").split()[1:] == ["5.54", "42,262", "10"]
    short = sized("llama-3.1-405b", "--fits", "80GiB")
    assert short.code == 0 and "The weights alone do not fit into 85.90 GB; 736.5 GB are missing" in short.out
    assert row_of(short, "80GiB").split()[1:] == ["736.5", "GB", "short"], "one number, in the sentence and below it"
    assert "4,096 tokens" in short.out and "--batch N" in short.out and "--batch N" not in ran.out
    half = sized("llama-3.1-8b", "--fits", "24GB", "--batch", "1", "--streaming", "0.5")
    assert "128 of 256 key/value heads keep 128 + 256 tokens and no more" in half.out
    assert row_of(half, "24GB").split()[1:] == ["5.54", "84,141", "18"]
    document = json.loads(sized("llama-3.1-8b", "--fits", "24 GB", "--json").out)
    (fit,) = document["fits"]
    assert (fit["name"], fit["longest_context"], fit["largest_batch"], fit["fits"]) == ("24 GB", 42_262, 10, True)
    assert document["asked"]["batch"] == fit["batch"] == 1, "as the page of the same command"
    assert [fit["name"] for fit in json.loads(sized("gpt2", "--json").out)["fits"]][2] == "64 GB Mac"


def test_gpus_are_answered_in_a_sentence_then_a_row_for_equal_ones(sized):
    ran = sized("llama-3-70b", "--gpus", "4x80GB", "--context", "8k")
    assert (ran.code, ran.err) == (0, "")
    answer = "llama-3-70b in fp16 fits on 4 x 80 GB: up to 446,352 tokens in all, e.g. a batch of 54 at 8,192."
    assert ran.lines[0] == answer and ran.lines[1].startswith("Made for 8,192 positions: ")
    cells = row_of(ran, "each of GPU 0-3").replace("│", " ").split()
    assert cells == ["each", "of", "GPU", "0-3", "80", "17.64", "B", "35.28", "0.16", "36.57", "446,352", "54"]
    assert "Each GPU keeps 2 of 8 KV heads." in " ".join(ran.lines)
    staged = sized("deepseek-v3", "--gpus", "16x80GB", "--dtype", "fp8", "--pipeline", "2", "--tensor", "8")
    assert [row_of(staged, start).split()[4] for start in ("each of GPU 0-7", "each of GPU 8-15")] == ["0-30", "31-60"]
    assert "Latents belong to all heads" in staged.out and "without their scales" in staged.out
    assert "each head's cache is kept on 2 GPUs" in " ".join(sized("llama-3-70b", "--gpus", "16x80GB").lines)
    assert max(len(line) for each in (ran, staged) for line in each.lines) <= WIDTH
    options = ("--block", "32", "--prefix", "1k", "--chunk", "4k", "--overhead", "0.05", "--batch", "3")
    document = json.loads(sized("Qwen/Qwen3-8B", "--gpus", "24GB", *options, "--json").out)
    assert document["name"] == "qwen3-8b" and document["fits"] == []
    (stage,) = document["gpus"]["stages"]
    assert (document["gpus"]["block"], document["gpus"]["prefix"], document["gpus"]["chunk"]) == (32, 1024, 4096)
    assert stage["fit"]["overhead_bytes"] == 12 * 10**8 and document["asked"]["batch"] == 3
    short = sized("llama-3-70b", "--gpus", "1x80GB")
    assert short.code == 0 and "2 of these GPUs would do." in " ".join(short.lines) and "GB short" in short.out


@pytest.mark.parametrize(
    ("name", "form", "low", "high"),
    # The repositories' files: 13.8 and 65.2 GB; 688.6 GB, of them 15 for the layer that is left out.
    [("gpt-oss-20b", "MXFP4", 13.5, 14.0), ("gpt-oss-120b", "MXFP4", 64.5, 65.9), ("deepseek-v3", "FP8", 665, 680)],
)
def test_weights_published_in_fewer_bits_are_said_with_the_finding(sized, name, form, low, high):
    words = " ".join(sized(name).lines[:9])
    size = float(re.search(rf"published in {form}.*?: about ([\d.]+) GB", words)[1])
    assert low < size < high and f", {size:g} GB as published, " in sized(name, "--dtype", "published").lines[0]


def test_a_context_past_the_models_positions_windows_experts_and_latents_are_said(sized):
    ran = sized("llama-3-8b", "--context", "9000")
    assert ran.lines[1] == "Context is past the 8,192 positions that llama-3-8b is made for."
    assert "1,000,000,000,000,000,000" in sized("llama-3-8b", "--context", str(10**18)).lines[1]
    assert ran.out.count("is made for.") <= 2
    assert "21 of 42 layers see the last 4,096 tokens" in sized("gemma-2-9b").out
    gpt_oss = sized("gpt-oss-20b").out
    assert "12 of 24 layers see the last 128 tokens; all layers have 32 experts, of which a token uses 4" in gpt_oss
    assert "Allocated beforehand, 192.0 KiB more: a window also has a place for the newest token." in gpt_oss
    assert "At this context one more token adds 24.00 KiB: full windows drop one." in gpt_oss
    assert "Experts read: the average number that so many tokens choose" in gpt_oss
    deepseek = sized("deepseek-v3").out
    assert "on latents of 512 + 64 (MLA)" in deepseek and "MLA (as it is)" in deepseek
    assert "671.0 B parameters (37.55 B active)" in deepseek


def test_a_bars_length_is_its_share_an_encoder_has_no_cache_and_an_image_no_choice_of_length(sized):
    bar = {line.split()[0]: sum(line.count(block) for block in BLOCKS) for line in sized("gpt2").lines if "│" in line}
    assert bar["feed-forward"] > bar["embedding"] > bar["q"] > bar["norm"] == 1
    assert "KV cache" not in sized("bert-base").out and "Decoding" not in sized("bert-base").out
    assert "8 images of 197" in sized("vit-base").out and "An image is 197 tokens." in sized("vit-base").out


def test_the_document_is_one_json_document(sized):
    ran = sized("gpt2", "--context", "100", "--batch", "2", "--dtype", "fp32", "--json")
    document = json.loads(ran.out)
    assert document["parameters"]["total"] == 124_439_808
    lengths = {"context": 100, "source": 100, "batch": 2, "streaming": None, "stored": None}
    assert document["asked"] == {**lengths, "dtype": "fp32", "cache_dtype": "fp32"}
    assert document["cache"]["steady_bytes"] == 2 * 4 * 100 * 12 * 2 * 768
    assert len(document["parameters"]["layers"]) == 12


@pytest.mark.parametrize(
    ("typed", "number"), [("4096", 4096), ("4k", 4096), ("128k", 131_072), ("128K", 131_072), ("1M", 1_048_576)]
)
def test_a_context_is_read_as_people_write_it(sized, typed, number):
    document = json.loads(sized("llama-2-70b", "--context", typed, "--batch", "1k", "--json").out)
    assert (document["asked"]["context"], document["asked"]["batch"]) == (number, 1024)


def test_a_config_in_a_folder_is_sized(sized, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64, "vocab_size": 97}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = 4 * (48 * 48 + 48) + 2 * 48 * 192 + 192 + 48 + 4 * 48
    for asked in (str(tmp_path), str(tmp_path / "config.json"), "config.json", "./config.json"):
        total = json.loads(sized(asked, "--json").out)["parameters"]["total"]
        assert total == (97 + 64) * 48 + 2 * layer + 2 * 48


def test_an_architecture_can_be_described_by_its_sizes(sized):
    sizes = (
        "--layers", "2", "--embed-dim", "48", "--heads", "6", "--kv-heads", "2", "--ffn-dim", "56", "--vocab", "97",
    )  # fmt: skip
    document = json.loads(sized(*sizes, "--gated", "--json").out)
    layer = 2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 56 + 2 * 48
    assert document["parameters"]["total"] == 2 * layer + 48 + 2 * 97 * 48
    assert document["shape"]["attention"] == "GQA-2"


def test_the_list_holds_every_preset_and_other_key_value_heads_can_be_tried(sized):
    ran = sized("--list")
    assert [line.split()[0] for line in ran.lines[1:]] == list(PRESETS)
    assert row_of(ran, "llama-2-70b").split()[1:6] == ["8,192", "80", "64", "8", "128"]
    assert max(map(len, ran.lines)) <= WIDTH
    ran = sized("llama-2-7b", "--kv-heads", "4")
    assert "on 4 KV heads (GQA-4)" in ran.out and "with num_kv_heads=4" in ran.out


@pytest.mark.thinned(name=("gpt-oss-20b", "bert-base"))
@pytest.mark.parametrize("name", ["llama-2-70b", "gpt-oss-20b", "bert-base", "transformer", "small"])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_written_and_said(sized, tmp_path, name, ending):
    ran = sized(name, "--plot", f"it.{ending}")
    assert ran.code == 0 and f"Wrote it.{ending}, the same as a picture." in ran.out
    data = (tmp_path / f"it.{ending}").read_bytes()
    assert data.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert name.encode() in data and b"parameters" in data and (b"KV cache" in data) == (name != "bert-base")


def test_a_picture_is_the_same_for_the_same_architecture(sized, tmp_path):
    for name in ("one.png", "two.png"):
        sized("gemma-2-9b", "--plot", name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_bytes_below_a_kilobyte_have_their_unit(sized):
    ran = sized("--layers", "1", "--embed-dim", "12", "--heads", "3", "--context", "1", "--batch", "1")
    (heading,) = (line for line in ran.lines if "a token, " in line)
    # 24 numbers of 2 bytes a token; with one of the 3 heads' keys and values, 16 bytes.
    assert re.split(r"\s{2,}", heading.strip())[:3] == ["a token, B", "kept, B", "kept, B"]


def test_ascii_terminals_get_ascii(capsys, monkeypatch):
    for place in ("size", "terminal.console"):
        monkeypatch.setattr(f"manyheads.cli.{place}.knows_blocks", lambda console: False)
    assert main(["size", "gpt2"]) == 0
    page = "\n".join(capsys.readouterr().out.splitlines())
    assert page.isascii() and "########" in page and " | " in page and "-----" in page


REFUSED = [
    (("gpt2", "--fits", "24"), "memory='24' has no unit: write '24 GB' (10^9 bytes each) or '24 GiB' (2^30)."),
    (("gpt2", "--fits", "-1GB"), "memory='-1GB': give bytes"),
    (("lama-2-70b",), "nothing to size is called 'lama-2-70b'", "Did you mean 'llama-2-70b'"),
    (("nowhere.json",), "there is no file or folder nowhere.json"),
    (("/dev/zero",), "cannot read /dev/zero: it is a device, not a file. Give a config.json, or a folder with one."),
    (("gpt2", "--context", "-1"), "context=-1: give a whole number, 1 or more"),
    (("gpt2", "--context", "4x"), "--context 4x: give a whole number, or one such as 128k or 1M. See manyheads size"),
    (("gpt2", "--context", "2000"), "gpt2 has positions for 1,024 tokens and no more"),
    (("gpt2", "--batch", "0"), "batch=0: give a whole number, 1 or more"),
    (("gpt2", "--dtype", "fp7"), "dtype='fp7' is not a dtype known here: use one of"),
    (("gpt2", "--kv-heads", "5"), "num_heads=12 is not a multiple of num_kv_heads=5", "Use one of [1, 2, 3, 4, 6, 12]"),
    (("deepseek-v3", "--kv-heads", "8"), "caches latents (MLA), which all heads share"),
    (("gpt2", "--layers", "3"), "'gpt2' is an architecture already, and --layers would describe one of your own"),
    (("--layers", "3"), "needs --layers, --embed-dim, --heads, but there is no --embed-dim and no --heads."),
    (("--layers", "3", "--embed-dim", "100", "--heads", "7"), "--embed-dim 100 is not a multiple of --heads 7",
     "give --head-dim"),
    (("--layers", "3", "--embed-dim", "90", "--heads", "9", "--gated"), "--gated needs --ffn-dim: with three matrices"),
    (("--layers", "0", "--embed-dim", "90", "--heads", "9"), "--layers 0: give a whole number, 1 or more"),
    (("gpt2", "--plot", "it.txt"), "--plot it.txt: cannot tell from that ending what to write"),
    (("gpt2", "--source", "3"), "gpt2 reads no second text"),
    (("gpt2", "--sink", "4"), "--sink and --recent say what streaming heads keep: add --streaming SHARE"),
    (("gpt2", "--streaming", "2"), "streaming=2.0: give the share of key/value heads that stream, from 0 to 1"),
    (("gpt2", "--gpus", "4y80"), "gpus='4y80': give how many and how large each is, as '4x80GB' or '8 x 141 GB'."),
    (("gpt2", "--gpus", "5x80GB"), "tensor=5: 12 heads of gpt2 do not divide over 5 GPUs", "[1, 2, 3, 4, 6, 12]"),
    (("gpt2", "--tensor", "2"), "--tensor: for GPUs that serve, so add --gpus, as in 4x80GB."),
    (("gpt2", "--gpus", "80GB", "--fits", "80GB"), "--gpus asks what fits on several GPUs"),
    (("gpt2", "bert-base"), "unexpected extra argument"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda each: " ".join(each[0]))
def test_what_cannot_be_sized_ends_with_one_line_and_exit_2(sized, arguments):
    asked, *said = arguments
    assert_refused(sized(*asked), *said)


def test_damaged_and_unknown_configs_end_with_exit_2_and_a_bundled_model_is_sized_by_its_name(sized, tmp_path):
    for text, said in (
        ('{"model_type": ', "config.json is not JSON"),
        ("[]", "config.json is a list, not a mapping"),
        ('{"model_type": "llama"}', "the config of 'llama' lacks hidden_size"),
        ('{"model_type": "zork"}', "'zork' is an architecture that neither manyheads nor transformers knows"),
    ):
        (tmp_path / "config.json").write_text(text)
        assert_refused(sized("config.json"), said)
    ran = sized("tiny-code", "--json")
    said = json.loads(ran.out)
    assert ran.code == 0 and said["name"] == "tiny-code" and "2754816" in ran.out
