"""The command as a whole: exit codes, who is heard on which stream, and that it starts at once and ends quietly.

`--help` shows each option as it is typed; what can be refused before a model is loaded is.
"""

import inspect
import io
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import manyheads
import manyheads.corpora
from manyheads.cli.arguments import METRICS
from manyheads.cli.commands import FINDING, GROUPS, MORE, NAMES, SENTENCE, all_commands
from manyheads.cli.main import main
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.edits import METRICS as OF_THE_LIBRARY

from .conftest import TEXT, assert_refused, raising, start

# ---------------------------------------------------------------------------------------------------------- starting


def test_version_and_help_come_without_torch_and_at_once():
    program = (
        "import sys; from manyheads.cli.main import main\n"
        "codes = [main(['--version']), main(['--help']), main(['look', '--help']), main([])]\n"
        "heavy = [name for name in ('torch', 'numpy', 'transformers', 'pandas') if name in sys.modules]\n"
        "print(codes, heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[0, 0, 0, 0] []"
    assert done.stdout.startswith(f"manyheads {manyheads.__version__}\n")
    for word in ("look", "head", "--debug", "--statistics"):
        assert word in done.stdout


@pytest.mark.parametrize("policy", [None, "ACTIVE"])
def test_torchs_threads_spin_for_a_moment_only_unless_they_are_told_otherwise(policy, monkeypatch):
    """Threads that spin take the cores of other processes and each other's: beside busy ones, 20 times the time."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that what `main` sets is taken back
        monkeypatch.delenv(name)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(sys, "argv", ["manyheads", "--version"])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main() == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert os.environ.get("GOMP_SPINCOUNT") == (None if policy else "5000")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert main(["--version"]) == 0 and "GOMP_SPINCOUNT" not in os.environ, "a caller's process is the caller's"


def test_alone_it_shows_every_command_on_one_screen_and_lines_that_can_be_typed(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 23 and max(map(len, shown)) <= 100  # with the prompt, 24 lines
    lines = [line for group in GROUPS.values() for line, _ in group]
    named = [line.split()[0] for line in lines] + list(MORE)
    assert len(set(named)) == len(named) and set(named) == {*NAMES}
    assert f"More      {', '.join(MORE)}" in shown
    for line in lines:
        assert any(f"manyheads {line}  " in row for row in shown), line
        name, *arguments = shlex.split(line)
        main([name, "--help"])
        options = capsys.readouterr().out
        assert all(word in options for word in arguments if word.startswith("--")), line


def test_what_it_shows_of_a_text_is_what_the_model_does(smollm2):
    assert manyheads.corpora.reading_of("smollm2").sentence == SENTENCE, "one example, in the terminal and on the page"
    name, query, key, weight = FINDING
    ids = smollm2.tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    smollm2.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            maps = torch.stack(smollm2.model(ids, output_attentions=True).attentions)[:, 0]
    finally:
        smollm2.model.set_attn_implementation("sdpa")
    words = [smollm2.tokenizer.decode(token).strip() for token in ids[0]]  # each a token
    places = [index for index, word in enumerate(words) if word == "John"]
    assert [query, key] == ["John#2", "John#1"] and len(places) == 2
    linking = maps[:, :, places[1], places[0]]
    layer, index = divmod(int(linking.argmax()), linking.shape[1])
    assert f"L{layer}H{index}" == name and f"{float(linking.max()):.2f}" == f"{weight:.2f}"


@pytest.mark.slow
def test_the_module_and_the_script_are_the_same_command():
    for command in ([sys.executable, "-m", "manyheads"], [os.path.join(os.path.dirname(sys.executable), "manyheads")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"manyheads {manyheads.__version__}\n", "")


# -------------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(("package", "command"), [
    ("torch", "look"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("typer", "look"), ("rich", "size"))),
])  # fmt: skip
def test_package_that_is_not_installed_is_named_with_what_to_type(package, command):
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from manyheads.cli.main import main\n"
        f"sys.exit(main([{command!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    # Its metadata is here, so that it is to be installed anew; tests/cli/test_doctor.py hides that, too.
    line = f'pip install --force-reinstall "{package}=={version(package).partition("+")[0]}"'
    told = f"manyheads: {package} is not installed, and this needs it: {line}. If that is not all: manyheads doctor.\n"
    assert done.stderr == told
    assert done.stderr.count("\n") == 1


@pytest.mark.thinned(package=("torch", "rich"), line=())  # a process each; either kind of failure in turns
@pytest.mark.parametrize("kind", ["ImportError", "RuntimeError"])
@pytest.mark.parametrize(
    ("package", "line"),
    [("torch", ["look", TEXT]), ("transformers", ["look", TEXT]), ("rich", ["size"]), ("fastapi", ["studio"])],
)
def test_package_that_cannot_be_imported_is_named_and_is_no_fault_of_ours(tmp_path, package, line, kind):
    (tmp_path / f"{package}.py").write_text(f"raise {kind}('bro ken')")
    path = os.pathsep.join([str(tmp_path), str(Path(manyheads.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "MANYHEADS_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "manyheads", *line]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    said = (
        f"manyheads: {package} cannot be imported, and this needs it ({kind}: bro ken): pip install --force-reinstall"
    )
    line = f'{said} "{package}=={version(package).partition("+")[0]}". If that is not all: manyheads doctor.'
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == line, done.stderr
    assert "Traceback" not in done.stderr and "fault of manyheads" not in done.stderr


def test_a_backend_that_matplotlib_does_not_know_is_said_before_a_model_is_loaded(tmp_path):
    environment = {**os.environ, "MPLBACKEND": "foo"}
    command = [sys.executable, "-m", "manyheads", "look", "--plot", str(tmp_path / "grid.png")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    said = "manyheads: MPLBACKEND is wrong: 'foo' is not a backend that matplotlib knows, so matplotlib does not"
    assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("error", [ImportError("of ours"), ImportError("x", name="manyheads.nn"), ValueError("Key")])
def test_what_our_own_code_raises_stays_our_fault(run, monkeypatch, error):
    monkeypatch.setattr("manyheads.models.load", raising(error))
    ran = run("look", TEXT)
    assert ran.code == 1 and "a fault of manyheads, not yours" in ran.err


@pytest.mark.parametrize(("arguments", "said"), [
    (["loook"], "no such command 'loook'. Did you mean 'look'? See manyheads --help."),
    (["look", "--bogus"], "no such option: --bogus. See manyheads look --help."),
    (["look", "--modle", "minilm"], "no such option: --modle. Did you mean --model? See manyheads look --help."),
    (["circuit", "--keeep", "1"], "no such option: --keeep. Did you mean --keep? See manyheads circuit --help."),
    (["stats", "--statistic", "x"], "no such option: --statistic. Did you mean --statistics? See manyheads stats"),
    (["roles", "--aks", "x"], "no such option: --aks. Did you mean --ask? See manyheads roles --help."),
    (["look", "x", "--save", "t.csv"], "no such option: --save. Did you mean --out? See manyheads look --help."),
    (["roles", "--save", "t.csv"], "no such option: --save. Did you mean --out? See manyheads roles --help."),
    (["prune", "--share", "0.1"], "no such option: --share. See manyheads prune --help."),
    (["head", "L0H1", "--knd", "x"], "no such option: --knd. See manyheads head --help."),
    (["roles", "--estimator", "x"], "no such option: --estimator. See manyheads roles --help."),
    (["head"], "missing argument 'HEAD'. See manyheads head --help."),
    (["look", "x", "--model"], "option '--model' requires an argument. See manyheads look --help."),
    (["head", "L0H2", "x", "--top", "99"], "--top 99: give 10 or less. See manyheads head --help."),
    (["head", "L0H2", "x", "--window", "0"], "--window 0: give 1 or more. See manyheads head --help."),
    (["ablate", "L1", "--controls", "-1"], "--controls -1: give 0 or more. See manyheads ablate --help."),
    (["ablate", "L1", "--controls", "few"], "--controls few: give a whole number. See manyheads ablate --help."),
    (["ablate", "L1", "--factor", "x"], "--factor x: give a number. See manyheads ablate --help."),
    (["studio", "--port", "99999"], "--port 99999: give 65535 or less. See manyheads studio --help."),
])  # fmt: skip
def test_a_line_that_cannot_be_read_is_one_line_on_stderr(run, arguments, said):
    assert_refused(run(*arguments), said)


def test_our_own_fault_is_exit_1_and_debug_shows_where(run, monkeypatch):
    monkeypatch.setattr("manyheads.models.load", raising(RuntimeError("the flux is reversed\nand more")))
    ran = run("look", TEXT)
    assert (ran.code, ran.out) == (1, "")
    assert "a fault of manyheads, not yours: RuntimeError: the flux is reversed. Run it again with --debug" in ran.err
    assert "Traceback" not in ran.err
    for line in (["--debug", "look", TEXT], ["look", TEXT, "--debug"]):
        ran = run(*line)
        assert ran.code == 1 and "Traceback" in ran.err and "Run it again" not in ran.err


@pytest.mark.slow
def test_debug_shows_where_also_for_what_was_asked_wrong_but_not_within_a_text(run):
    ran = run("look", "", "--debug")
    assert ran.code == 2 and "Traceback" in ran.err and "manyheads: the text is empty" in ran.err
    assert json.loads(run("look", "x", "--json", "--", "--debug").out)["text"]["text"] == "x --debug"


def test_memory_and_a_full_disk_are_said_plainly(run, monkeypatch):
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")):
        monkeypatch.setattr("manyheads.models.load", raising(error))
        ran = run("look", TEXT)
        assert ran.code == 1 and "out of memory" in ran.err and "a fault of manyheads" not in ran.err


def test_an_interrupt_anywhere_is_exit_130(run, monkeypatch):
    for place in ("models.load", "cli.commands.run", "cli.look.command.typed_source"):
        with monkeypatch.context() as patched:
            patched.setattr(f"manyheads.{place}", raising(KeyboardInterrupt()))
            ran = run("look", TEXT)
        assert (ran.code, ran.out) == (130, "") and ran.err.endswith("manyheads: stopped.\n")


def wait_for_torch(pid: int) -> None:
    """Until a process has begun to import torch, which goes on for a second from there."""
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        pytest.skip("no /proc here that says what a process has loaded")
    until = time.monotonic() + 60
    while "libtorch" not in maps.read_text() and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.slow
def test_being_told_to_end_is_exit_143(bert_folder, cache):
    process = start("look", TEXT, "--model", bert_folder, cache=cache)
    wait_for_torch(process.pid)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "") and err.endswith("manyheads: stopped.\n") and "Traceback" not in err


def test_a_slow_step_ends_at_100_per_cent_and_steps_have_names(capsys, monkeypatch):
    monkeypatch.setattr("manyheads.cli.terminal.progress.SLOW_SECONDS", 0.0)
    with ProgressLine().steps() as steps:
        for name in ("reading sentences", "reading passages"):
            steps.begin(name)
            time.sleep(0.05)
            for done in (1, 2, 2):
                steps.progress(done, 2)
    assert capsys.readouterr().err.splitlines() == [
        "reading sentences", "reading sentences 100%", "reading passages", "reading passages 100%",
    ]  # fmt: skip


# Interrupts while a text is read are raised in this process below; here that a signal comes to be one.
@pytest.mark.parametrize("moment", ["during imports", pytest.param("reading your text", marks=pytest.mark.slow)])
def test_ctrl_c_ends_with_130_and_leaves_nothing(moment, bert_folder, cache, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "long.txt").write_text("the cat sat on the mat " * 30_000)
    line = ["look", "--file", str(tmp_path / "long.txt"), "--model", bert_folder, "--out", str(folder / "t.parquet")]
    with start(*line, cache=cache) as process:
        if moment == "during imports":
            wait_for_torch(process.pid)
        else:
            assert any(moment in line for line in process.stderr), "it was over before it could be stopped"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    assert not list(folder.iterdir())


def test_an_interrupt_while_the_page_is_measured_remembers_nothing(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("manyheads.roles.page_labels.shipped_labels", lambda lm: None)
    monkeypatch.setattr("manyheads.roles.labels.measure", raising(KeyboardInterrupt()))
    assert run("look", TEXT, "--out", "t.csv").code == 130
    assert not list(tmp_path.rglob("*.*"))


# ------------------------------------------------------------------------------------------------------- the streams


@pytest.mark.slow  # a process that loads a model
def test_a_piped_look_is_plain_and_stderr_is_ours_alone(bert_folder, cache):
    process = start("look", TEXT, "--model", bert_folder, cache=cache)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "\x1b" not in out + err and max(map(len, out.splitlines())) <= 100
    ours = re.compile(r"starting|loading \S*bert|(labelling the heads|reading your text).*")
    assert [line for line in err.splitlines() if not ours.fullmatch(line)] == []


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(bert_folder, cache):
    for arguments in (["look", TEXT], ["look", TEXT, "--json"]):
        with start(*arguments, "--model", bert_folder, cache=cache) as process:
            process.stdout.close()
            err = process.stderr.read()
        assert process.returncode == 0
        assert "Error" not in err and "manyheads:" not in err


@pytest.mark.slow  # loads models anew, each with its advice
def test_other_libraries_are_silent_while_a_command_runs_and_speak_again_afterwards(run, monkeypatch, minilm):
    def chatter(name, **how):
        logging.getLogger("transformers.somewhere").warning("advice")
        warnings.warn("a warning that nobody asked for", stacklevel=1)
        return minilm

    monkeypatch.setattr("manyheads.models.load", chatter)
    ran = run("look", TEXT)
    assert ran.code == 0 and "advice" not in ran.err and "nobody asked" not in ran.err
    assert logging.root.manager.disable == 0
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_colour_comes_when_forced_and_never_with_no_color(run, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in run("look", TEXT).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run("look", TEXT).out
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert max(map(len, plain.splitlines())) <= 100 and "previous token" in plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", run("look", TEXT).out), "bold and faint may stay, colours not"


def test_a_terminal_without_unicode_gets_ascii(minilm, monkeypatch, run):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["head", "L0H2", "naïve café café"]) == 0
    said = raw.getvalue().decode("ascii")
    assert "##" in said and "caf?" in said


def test_nothing_that_a_terminal_would_obey_gets_through(run):
    hostile = "a \x1b[31mred\x1b[0m cat\x07\r sat \u202eon it"
    for line in (["look", hostile], ["head", "L0H2", hostile]):
        ran = run(*line)
        assert ran.code == 0 and not set("\x1b\x07\r\u202e") & set(ran.out + ran.err)
    assert json.loads(run("look", hostile, "--json").out)["text"]["text"] == hostile


# -------------------------------------------------------------------------------------------------------------- --help


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help_shows_each_parameter_as_it_is_typed(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert "--help" in said
    for wrong in ("<bool>", "<list[", "<int>", "<str>", "<float>", "<path>", "[[", "]...]"):
        assert wrong not in said


@pytest.mark.parametrize("command", all_commands(), ids=lambda each: each.__name__)
def test_help_shows_every_word_of_options_and_leaves_the_wrapping_of_paragraphs_to_the_terminal(
    command, capsys, monkeypatch
):
    """Rich takes "[default: ...]" within an option's help for markup, and shows nothing."""
    monkeypatch.setenv("COLUMNS", "1000")
    main([command.__name__, "--help"])
    said = capsys.readouterr().out
    for each in inspect.signature(command, eval_str=True).parameters.values():
        assert each.annotation.__metadata__[0].help in said
    lines = [line.strip() for line in said.splitlines()]
    for paragraph in inspect.getdoc(command).split("\n\n"):
        assert " ".join(paragraph.split()) in lines


# -------------------------------------------------------------------------------------------- before a model is loaded

UNKNOWN = "--metric bogus is unknown: use auto, loss, kl or cosine."
OURS = "Only such a save would be replaced. Name a new folder."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["ablate", "L1", "--metric", "bogus"], UNKNOWN),
        (["importance", "--metric", "bogus"], UNKNOWN),
        (["importance", "--metric", "class_loss"], "--metric class_loss is unknown: use auto"),
        (["importance", "--kind", "scale"], "kind='scale' is not a way to ablate: use one of zero, mean"),
        (["ablate", "L3H5-2"], "'L3H5-2': heads 5 to 2 run backwards. Write 'L3H2-5'."),
        (["ablate", "L1", "--kind", "copy", "--source", "L4-1"], "'L4-1': layers 4 to 1 run backwards. Write 'L1-4'."),
        (["prune", "L1, L3H5-2", "--out", "new"], "'L3H5-2': heads 5 to 2 run backwards. Write 'L3H2-5'."),
        (["prune", "L3H2", "--out", "a.txt"], "a.txt: it is a file. Name a folder."),
        (
            ["prune", "--lowest", "3", "--out", "full"],
            f"'novel.txt' in it is not of an earlier save by manyheads. {OURS}",
        ),
        (["prune", "L3H2", "--out", "none/new"], "none/new: its folder does not exist. Make it first"),
        (["convert", "--kv-heads", "0", "--model", "m", "--out", "new"], "--kv-heads 0: give 1 or more."),
        (["convert", "--kv-heads", "2", "--model", "m", "--out", "a.txt"], "a.txt: it is a file. Name a folder."),
        (["roles", "--corpus", "a.txt"], "no text was given: file a.txt contains none."),
        (["roles", "--corpus", "/dev/zero"], "cannot read /dev/zero: it is a device, not a file. Name a file."),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(run, monkeypatch, tmp_path, line, said):
    monkeypatch.setattr("manyheads.models.load", raising(AssertionError("loaded first")))
    (tmp_path / "a.txt").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/novel.txt").write_text("words")
    assert_refused(run(*line), said)


def test_the_metrics_that_may_be_typed_are_those_of_the_library_that_need_no_labels():
    assert [*METRICS] == ["auto", *(name for name in OF_THE_LIBRARY if not name.startswith("class"))]


# ---------------------------------------------------------------------------------------------------------- devices

LOADING = (
    *("look", "head", "roles", "stats", "compare", "ablate", "importance", "prune", "convert", "heads", "split"),
    *("patch", "circuit", "attribute", "why", "writes"),
    *("learn", "studio", "publish", "card"),
)


def test_every_command_that_loads_a_model_takes_a_device_and_a_dtype():
    options = {command.__name__: inspect.signature(command).parameters.keys() for command in all_commands()}
    assert {name for name, names in options.items() if {"device", "dtype"} <= names} == set(LOADING)
    loads = re.compile(r"load_model|gather|desk_of\(paths")  # that of watch has no model
    assert {command.__name__ for command in all_commands() if loads.search(inspect.getsource(command))} == set(LOADING)


def test_a_device_that_the_environment_chose_is_said_and_one_that_was_typed_is_offered_again(run, monkeypatch):
    line = ("ablate", "L1H0", TEXT, "--controls", "0")
    note = "is on cpu, as MANYHEADS_DEVICE says; --device chooses another"
    monkeypatch.setenv("MANYHEADS_DEVICE", "cpu")
    assert note in run(*line).err and note not in run(*line, "--device", "cpu").err
    assert f'"{TEXT}" --device cpu' in " ".join(run("look", TEXT, "--device", "cpu").out.split())
    monkeypatch.setenv("MANYHEADS_DEVICE", "toaster")
    assert_refused(run(*line), "MANYHEADS_DEVICE='toaster' cannot be used: ")


def test_json_holds_the_device_and_the_dtype_and_a_way_to_make_a_pass_that_is_none_is_refused_before_loading(
    run, monkeypatch
):
    line = ("ablate", "L1H0", "x = y + 1", "--model", "tiny-code", "--controls", "0", "--json")
    document = json.loads(run(*line, "--device", "cpu", "--dtype", "float64").out)
    assert "float64, as asked; on cpu, as asked" in document["loaded"]
    monkeypatch.setattr("manyheads.models.load", raising(AssertionError("loaded")))
    monkeypatch.setenv("MANYHEADS_PASS", "foo")
    for line in (["look", TEXT], ["ablate", "L1", TEXT], ["studio", "--get", "/api/workspace"]):
        assert_refused(
            run(*line), "MANYHEADS_PASS='foo' is not a way to make a pass: set it to kernels, tiles or auto."
        )


def test_the_search_for_garbage_waits_until_a_model_is_loaded_and_then_leaves_out_what_is_there():
    code = "import gc; from manyheads.cli import start; {}; print(*gc.get_threshold(), gc.get_freeze_count() > 0)"

    def told(line: str) -> list[str]:
        return subprocess.check_output([sys.executable, "-c", code.format(line)], text=True).split()

    usual = told("pass")
    assert usual[-1] == "False" and told("start.end()") == usual, "what is not a process of ours keeps its collector"
    assert told("start.begin()") == ["1000000", *usual[1:3], "False"]
    assert told("start.begin(); start.end()") == [*usual[:3], "True"]


def test_the_laboratory_is_imported_for_its_own_commands_and_for_help_alone():
    loaded = "print(any(name.startswith('manyheads.lab') for name in sys.modules), file=sys.stderr)"
    program = f"""
import sys
from manyheads.cli.main import main
for words in (["size", "gpt2", "--json"], ["--help"]):  # its commands run in tests of their own
    main(words)
    {loaded}
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr.split() == ["False", "True"]
