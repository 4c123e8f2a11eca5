"""What the README shows runs as it stands there."""

import json
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
STROP = [sys.executable, "-c", "from strop.cli.main import main; main()"]


def block(language: str, word: str = "") -> str:
    """The first block of a language that holds a word."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if word in text]
    assert found
    return found[0]


def test_the_environment_of_the_readme_is_short_and_trains_as_it_stands(tmp_path: Path) -> None:
    code = block("python", "class Parrot")
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    (tmp_path / "parrot.py").write_text(code)
    (tmp_path / "parrot.toml").write_text(block("toml"))
    done = subprocess.run(
        [*STROP, "train", "parrot.toml", "--run", "run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    evaluated = subprocess.run([*STROP, "eval", "run", "--json"], cwd=tmp_path, capture_output=True, text=True)
    result = json.loads(evaluated.stdout)
    assert result["sampled_success"] > 0.9
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    [warm] = [m for m in metrics if m["step"] == 40]
    assert warm["eval_sampled_success"] < 0.75, (
        "the warm start alone answers at random, so that there is something to learn"
    )


def test_the_readme_names_commands_that_exist() -> None:
    from strop.cli.main import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    named = set(re.findall(r"^strop ([a-z]+)|\| strop ([a-z]+)", README, re.MULTILINE))
    assert {a or b for a, b in named} <= known
    targets = set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_grader_of_the_readme_has_the_findings_that_are_shown(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "grader.py").write_text(block("python", "def verify(task, answer)"))
    done = subprocess.run([*STROP, "audit", "grader:verify", "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found = {f"{f['tier']}: {f['claim']}" for f in json.loads(done.stdout)["findings"] if f["kind"] == "confirmed"}
    shown = re.findall(r"confirmed tier (\d) +sum(?: \(and 1 more\))?: (.*)", README)
    assert shown and {f"{tier}: {claim}" for tier, claim in shown} == found
