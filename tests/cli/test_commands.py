"""The command line as a user meets it: what it prints, where, and with which exit code."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhead.cli import call
from fedhead.runs.folder_lock import LOCK

QUICK = ["rounds=2", "local_epochs=1", "model.hidden=[16]", "--executor", "loop", "--quiet"]


def test_nothing_at_all_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([]) == 0
    assert "usage: fedhead" in capsys.readouterr().out
    for group in ("deploy", "statistics"):
        assert call([group]) == 0
        assert f"usage: fedhead {group}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["ls", "validate", "run", "partition", "report", "demo", "bench"])
def test_every_command_helps_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Examples:\n  fedhead {command}" in out


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("methods", "fedavg"),
        ("stages", "ccvr"),
        ("datasets", "digits"),
        ("models", "mlp"),
        ("partitions", "iid"),
        ("recipes", "digits"),
    ],
)
def test_lists_are_tables_and_json(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["ls", kind]) == 0
    assert f"\n{name} " in capsys.readouterr().out
    assert call(["ls", kind, "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found[name]["description"]


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert call(["run", "digits", *QUICK, *words, "--json"]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return out


def test_run_says_what_the_json_must_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["method=fedprox", "method.mu=0.1", "partition=dirichlet(0.5)", "seed=3", "client_test=0.2"]
    result = run_json(capsys, *words, "--out", str(tmp_path / "run"))
    wanted = {"run", "accuracy", "personal", "stages", "bytes_up", "bytes_down", "seconds", "seed"}
    assert wanted <= result.keys()
    assert (result["run"], result["seed"], result["stages"]) == (str(tmp_path / "run"), 3, {})
    assert 0 < result["accuracy"] <= 100
    assert 0 < result["personal"] <= 100
    # 2 rounds, 10 clients, all parameters of 64 -> 16 -> 10 in float32
    assert result["bytes_up"] == result["bytes_down"] == 2 * 10 * 4 * (64 * 16 + 16 + 16 * 10 + 10)
    files = {p.name for p in (tmp_path / "run").iterdir()}
    assert files == {
        LOCK,
        "config.yaml",
        "partition.npz",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "environment.json",
        "result.json",
    }
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["executor"] == "loop"


def test_run_without_json_and_out_makes_a_new_folder_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert call(["run", "digits", *QUICK]) == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["digits-fedavg-seed0", "digits-fedavg-seed0-2"]
    assert "accuracy" in capsys.readouterr().out


def test_a_stage_shows_what_it_did_for_the_global_model_and_for_the_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "digits", *QUICK, "client_test=0.3", "stages=[finetune]", "--out", str(tmp_path / "run")]
    assert call(words) == 0
    shown = capsys.readouterr().out
    result = json.loads((tmp_path / "run/result.json").read_text())
    tuned = result["stages"]["finetune"]["personal"]
    assert tuned > result["personal"]
    assert f"  + finetune: accuracy {result['accuracy']:.2f} %, personal {tuned:.2f} %" in shown
    assert call([*words, "--resume", "--json"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["stages"]["finetune"]["personal"] == pytest.approx(tuned)


def test_the_same_seed_gives_the_same_run_and_another_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(name: str, seed: int) -> list[dict[str, Any]]:
        run_json(capsys, f"seed={seed}", "--out", str(tmp_path / name))
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]

    first = rows("a", 1)
    assert rows("b", 1) == first
    assert rows("c", 2) != first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "digit"], "did you mean 'digits'"),
        (["run", "nowhere.yaml"], "nowhere.yaml is not there"),
        (["run", "digits", "roundz=3"], "did you mean 'rounds'"),
        (["run", "digits", "rounds=many"], "rounds: 'many' is not a whole number"),
        (["run", "digits", "rounds"], "is no assignment"),
        (["run", "digits", "method=fedporx"], "did you mean 'fedprox'"),
        (["run", "digits", "method.mu=1"], "method fedavg takes no parameters; for another method write NAME(mu=…)"),
        (["run", "digits", "method=fedprox", "method.mo=1"], "did you mean 'mu'"),
        (["run", "digits", "method=fedprox", "method.mu=big"], "method.mu: 'big' is not a number"),
        (
            ["validate", "digits", "method=fedprox", "method.mu=-1"],
            "method.mu: -1 is out of range, it must be at least 0",
        ),
        (["validate", "digits", "method=clsprox", "method.mu=-1"], "method.mu: -1 is out of range"),
        (["validate", "digits", "method=ditto", "method.lam=-1"], "method.lam: -1 is out of range"),
        (
            ["validate", "digits", "method=feddyn", "method.alpha=0"],
            "method.alpha: 0 is out of range, it must be above 0",
        ),
        (["validate", "digits", "method=fedavgm", "method.beta=1"], "method.beta: 1 is out of range"),
        (["validate", "digits", "method=scaffold", "method.server_lr=0"], "method.server_lr: 0 is out of range"),
        (["validate", "digits", "method=moon", "method.temperature=0"], "method.temperature: 0 is out of range"),
        (["validate", "digits", "method=fedproto", "method.lam=-1"], "method.lam: -1 is out of range"),
        (
            ["validate", "digits", "method=fedclassavg", "method.base_temperature=0"],
            "method.base_temperature: 0 is out of range",
        ),
        (
            ["validate", "digits", "method=ktpfl", "method.distillation_epochs=0"],
            "method.distillation_epochs: 0 is out of range",
        ),
        (["validate", "digits", "stages=[ccvr]", "stage.ccvr.lr=-3"], "stage.ccvr.lr: -3 is out of range"),
        (
            ["validate", "digits", "stages=[recalibrate]", "stage.recalibrate.momentum=1"],
            "stage.recalibrate.momentum: 1 is out of range",
        ),
        (["validate", "digits", "partition=skewed(20)", "clients=3"], "only 10 classes; use skewed(10)"),
        (["run", "digits", "stages=[ccrv]"], "did you mean 'ccvr'"),
        (["run", "digits", "stages=[ccvr]", "stage.ccvr.sample=3"], "did you mean 'samples'"),
        (["run", "digits", "model=mpl"], "did you mean 'mlp'"),
        (["run", "digits", "model.hiden=[3]"], "did you mean 'hidden'"),
        (["run", "digits", "model.head=liner"], "did you mean 'linear'"),
        (["run", "digits", "model.head=3"], "model.head: 3 is not text"),
        (["run", "digits", "model=simplecnn"], "8x8"),
        (["run", "digits", "dataset=digitz"], "did you mean 'digits'"),
        (["run", "digits", "partition=dirichlet(-1)"], "alpha"),
        (["run", "digits", "partition=dirchlet(1)"], "did you mean 'dirichlet"),
        (["run", "digits", "partition=natural"], "partition: natural is for data that names its clients"),
        (["run", "digits", "size=8"], "size: this is for files and folders, digits is a registered data set"),
        (["run", "digits", "dataset=mine.npz"], "mine.npz: no such file"),
        (["run", "digits", "clients=5000"], "clients: 5000"),
        (["run", "digits", "subset=5000"], "subset: 5000"),
        (["run", "digits", "augment=foo"], "augmentation 'foo'"),
        (["run", "digits", "client_test=7"], "client_test"),
        (["run", "digits", "optimizer=adam"], "momentum: 0.9 is for sgd"),
        (["run", "digits", "--resume"], "--resume needs --out"),
        (["run", "digits", "--device", "tpu"], "tpu"),
        (["run", "digits", "--sieve"], "--sieve"),
        (["run", "digits", "--local-epochs=5"], "--local-epochs is no option, but local_epochs is a recipe key: write"),
        (["ls", "--rounds", "5"], "unknown option '--rounds'"),
        (["ls"], "the following arguments are required: KIND, one of methods, stages, datasets, "),
        (["explain", "executor"], "executor is no recipe key, but an option of commands: use --executor"),
        (
            ["sweep", "digits", "method=fedavg,fedprox"],
            "give an axis, with its values in brackets as in 'lr=[0.1,0.2]'",
        ),
        (["run", "digits", "stages=[fedprox]"], "fedprox is one of the methods, not of the stages: give it as method"),
        (
            ["run", "digits", "uploads=[krum(1)]"],
            "krum is one of the aggregators, not of the uploads: give it as aggregator",
        ),
        (["run"], "the following arguments are required: RECIPE; see fedhead run --help"),
        (["run", "digits", "--threads"], "--threads: expected one argument"),
        (["run", "digits", "--threads", "--json"], "--threads: expected one argument"),
        (["report", ".", "--title", "-x"], "after = if it begins with a dash; see fedhead report --help"),
        (["report", ".", "--title=-x"], ". contains no run"),
        (["report", "--", "--title"], "--title does not exist"),
        (
            ["run", "digits", "--threads", "-1"],
            "--threads: -1 is out of range, it must be at least 1; see fedhead run -",
        ),
        (
            ["export", "runs", "--ot", "a.onnx"],
            "unknown option '--ot': did you mean '--out'? See fedhead export --help",
        ),
        (["export", "runs"], "the following arguments are required: --out; see fedhead export --help"),
        (["run", "digits", "--threads", "two"], "--threads: 'two' is not a whole number"),
        (["run", "digits", "--threads=0"], "--threads: 0 is out of range, it must be at least 1"),
        (["run", "digits", "--thread", "2"], "unknown option '--thread': did you mean '--threads'? See fedhead run -"),
        (["run", "digits", "--json=yes"], "--json: ignored explicit argument 'yes'; see fedhead run --help"),
        (["run", "digits", "--precision", "fp31"], "--precision: 'fp31' is not one of fp32, tf32, bf16"),
        (["ls", "keys", "methods"], "unrecognized arguments: methods; see fedhead ls --help"),
        (["rnu", "digits"], "unknown command 'rnu': did you mean 'run'? See fedhead --help"),
        (["deploy", "ini"], "unknown command 'deploy ini': did you mean 'deploy init'? See fedhead --help"),
        (["run", __file__], "test_commands.py is no recipe: give a .yaml file"),
        (["run", str(Path(__file__).parent)], f"data of your own are given as dataset={Path(__file__).parent}"),
        (["figure", "learning", "nowhere"], "nowhere does not exist: give run folders"),
        (["analyse", "norms", __file__], "test_commands.py contains no run: give run folders"),
        (["export", "nowhere", "--out", "a.onnx"], "nowhere is no run folder: it has no config.yaml; give one"),
        (["calibrate", "nowhere", "--out", "a.safetensors"], "nowhere is not there: give a run folder"),
        (["new", "method", "FedMine", "--out", __file__], "test_commands.py: File exists; give another path"),
        (["deploy", "init", "clinic", "--site", "a", "--site", "a"], "a name is given twice"),
        (["ls", "moons"], "moons"),
        (["fly"], "unknown command 'fly'. See fedhead --help"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["partition", "digits", "dirichlet(0)"], "alpha"),
        (["partition", "digits", "iid", "--plot", "a.txt"], "a.txt"),
        (["validate", "digits", "method=scaffold", "optimizer=adam", "momentum=0"], "use optimizer=sgd"),
        (["bench", "--clients", "ten"], "--clients 'ten': write whole numbers"),
        (["bench", "--clients", "0"], "--clients '0': write whole numbers"),
        (["bench", "--workloads", "simplecn"], "did you mean 'simplecnn'"),
        (["bench", "--executors", "stak"], "did you mean 'stack'"),
        (["bench", "--precisions", "fp16"], "unknown precision 'fp16'"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert said in printed.err
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_validate_accepts_what_run_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["validate", "digits", "method=fedprox", "stages=[ccvr]", "partition=dirichlet(0.05)"]) == 0
    assert capsys.readouterr().out.startswith("ok: fedprox + ccvr on digits, 10 clients by dirichlet(0.05)")


def test_partition_counts_every_sample_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", "digits", "dirichlet(0.1)", "--clients", "5", "--seed", "2"]
    assert call([*words, "--plot", str(tmp_path / "deep" / "split.svg")]) == 0
    shown = capsys.readouterr().out
    assert call([*words, "--json"]) == 0
    counts = np.array(json.loads(capsys.readouterr().out)["counts"])
    assert counts.shape == (5, 10)
    assert counts.sum() == 1437
    assert [int(word) for word in shown.splitlines()[6].split()[1:]] == [*counts.sum(axis=0), 1437]
    assert "digits, dirichlet(0.1), seed 2" in (tmp_path / "deep" / "split.svg").read_text()


@pytest.mark.slow
def test_report_compares_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("fedavg", "fedprox"):
        for seed in (0, 1):
            run_json(capsys, f"method={method}", f"seed={seed}", "--out", str(tmp_path / "runs" / f"{method}{seed}"))
    assert call(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr().out
    assert "fedavg" in shown
    assert "fedprox" in shown
    assert "±" in shown
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_own_data_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (np.eye(3)[y] + 0.1 * rng.standard_normal((60, 3))).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x[:45], y=y[:45], x_test=x[45:], y_test=y[45:])
    result = run_json(
        capsys, f"dataset={tmp_path / 'mine.npz'}", "clients=3", "partition=iid", "--out", str(tmp_path / "run")
    )
    assert result["accuracy"] is not None


def test_what_clients_keep_may_not_diverge_unseen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "digits", *QUICK, "method=local", "lr=1e10", "--out", str(tmp_path / "run")]
    assert call(words) == 1
    assert "error: client 1, round 1: 'own/" in capsys.readouterr().err
    assert not (tmp_path / "run" / "result.json").exists()
    assert call(words) == 2
    assert "holds a run that diverged already: select another folder" in capsys.readouterr().err


def test_diverging_is_a_failure_not_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "digits", *QUICK, "lr=1e30", "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.slow
def test_the_demo_has_one_row_for_one_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["demo", "--seeds", "1", "--rounds", "1", "--out", str(tmp_path / "demo"), "--quiet"]) == 0
    table, _, _ = capsys.readouterr().out.partition("\nruns: ")
    labels = [line.rpartition("  ")[0].split("  ")[0] for line in table.splitlines()[2:]]
    assert labels == ["fedavg", "fedavg + ccvr", "fedetf", "one round: ridge"]


def test_tune_prints_the_final_accuracy_after_the_stages_as_its_trials_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "digits", *QUICK[:3], "stages=[ridge]", "lr=choice(0.01, 0.02)", "--trials", "1", "--final"]
    assert call([*words, "--out", str(tmp_path / "study")]) == 0
    result = json.loads((tmp_path / "study" / "final" / "result.json").read_text())
    assert result["accuracy"] != result["stages"]["ridge"]["accuracy"]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("final")]
    assert line.endswith(f"accuracy {result['stages']['ridge']['accuracy']:.2f} % on test samples")
