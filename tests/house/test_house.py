"""The house rules of docs/design.md, as tests over the tree."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "strop"
FILES = sorted(SOURCE.rglob("*.py"))

# A module may import from lower layers only, and from its own folder. Folders of one layer never import each other.
LAYERS = {
    "core": 0,
    "objective": 1,
    "credit": 1,
    "model": 1,
    "codec": 1,
    "sandbox": 1,
    "engine": 2,
    "algorithms": 2,
    "rollout": 2,
    "verify": 2,
    "envs": 3,
    "learn": 3,
    "teach": 4,
    "audit": 4,
    "watch": 4,
    "loop": 5,
    "report": 5,
    "lecture": 5,
    "config": 6,
    "cli": 7,
}
FORBIDDEN_NAMES = re.compile(r"(Manager|Handler|Helper|Base|Util|Utils)$")
TORCH_FREE = ("core", "algorithms", "sandbox", "verify", "envs", "audit", "config", "report")


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)


def typing_only(tree: ast.Module) -> set[int]:
    """Lines inside `if TYPE_CHECKING:`."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(text: str) -> int:
    """Lines with code: no blanks, no comments, no docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(s.strip()) and not s.strip().startswith("#") and n not in docstrings for n, s in lines)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def faults(text: str, layer: str) -> list[str]:
    """Every broken rule of one file."""
    tree = ast.parse(text)
    found: list[str] = []
    if code_lines(text) > 400:
        found.append(f"{code_lines(text)} code lines (limit 400)")
    if text.strip() and not ast.get_docstring(tree):
        found.append("no module docstring")
    for function in functions(tree):
        size = code_lines(ast.unparse(function))
        arguments = function.args.args + function.args.kwonlyargs
        count = sum(a.arg not in ("self", "cls") for a in arguments)
        if size > 60:
            found.append(f"{function.name}: {size} lines (limit 60)")
        if count > 8:
            found.append(f"{function.name}: {count} parameters (limit 8)")
        if layer != "cli":
            found += [
                f"{function.name}: imports {name} inside a function"
                for name, _ in imports(function)
                if name.startswith("strop")
            ]
        public = not function.name.startswith("_")
        top = any(function is n for n in tree.body)
        if public and top and not ast.get_docstring(function):
            found.append(f"{function.name}: public and without a docstring")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and FORBIDDEN_NAMES.search(node.name):
            found.append(f"{node.name}: a name that says nothing")
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
            found.append(f"{node.name}: public and without a docstring")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            found.append(f"calls {node.func.id}")
    skip = typing_only(tree)
    for name, line in imports(tree):
        if name.split(".")[0] in ("pickle", "shelve", "dill", "cloudpickle"):
            found.append(f"imports {name}")
        if not name.startswith("strop.") or line in skip:
            continue
        other = name.split(".")[1]
        if LAYERS[other] > LAYERS[layer] or (LAYERS[other] == LAYERS[layer] and other != layer):
            found.append(f"{layer} imports {name}, which is not below it")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_source_file_keeps_the_house_rules(path: Path) -> None:
    if path.parent == SOURCE and path.stem == "__init__":
        pytest.skip("the package's door re-exports from all layers")
    assert faults(path.read_text(), layer_of(path)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('"""D."""\n' + "x = 1\n" * 401, "401 code lines"),
        ('"""D."""\ndef f():\n    """D."""\n' + "    x = 1\n" * 61, "f: 62 lines"),
        ('"""D."""\ndef f(a, b, c, d, e, f, g, h, i):\n    """D."""\n', "9 parameters"),
        ('"""D."""\nimport pickle\n', "imports pickle"),
        ('"""D."""\nfrom strop.cli.main import app\n', "not below it"),
        ('"""D."""\nfrom strop.objective.parts import x\n', "not below it"),
        ('"""D."""\ndef _f():\n    from strop.core import errors\n', "inside a function"),
        ('"""D."""\nclass RunManager:\n    """D."""\n', "says nothing"),
        ('"""D."""\neval("1")\n', "calls eval"),
        ("x = 1\n", "no module docstring"),
        ('"""D."""\ndef f():\n    pass\n', "without a docstring"),
    ],
)
def test_each_rule_notices_a_file_that_breaks_it(text: str, fault: str) -> None:
    assert any(fault in found for found in faults(text, "credit"))


def graph() -> dict[str, set[str]]:
    names = {module_of(path) for path in FILES}
    edges: dict[str, set[str]] = {}
    for path in FILES:
        tree = ast.parse(path.read_text())
        inside = {line for f in functions(tree) for line in range(f.lineno, (f.end_lineno or 0) + 1)}
        skip = typing_only(tree) | inside
        edges[module_of(path)] = {n for n, line in imports(tree) if n in names and line not in skip}
    return edges


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """A cycle of imports, or nothing."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(edges.get(node, ())):
            if found := visit(other, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(edges) if (found := visit(node, []))), [])


def test_there_is_no_import_cycle() -> None:
    assert cycle(graph()) == []


def test_a_planted_import_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


def test_every_folder_has_a_layer() -> None:
    assert {layer_of(path) for path in FILES} - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize("layer", TORCH_FREE)
def test_what_answers_bad_input_imports_no_torch(layer: str) -> None:
    for path in FILES:
        if layer_of(path) == layer:
            assert not [
                n for n, _ in imports(ast.parse(path.read_text())) if n.split(".")[0] in ("torch", "transformers")
            ]


def test_terms_and_credit_have_never_heard_of_environments() -> None:
    for path in FILES:
        if layer_of(path) in ("objective", "learn"):
            names = [n for n, _ in imports(ast.parse(path.read_text()))]
            assert not [n for n in names if n.startswith(("strop.envs", "strop.rollout", "strop.core.task"))]


def tracked() -> list[Path]:
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return [ROOT / line for line in out.stdout.splitlines() if (ROOT / line).is_file()]


def test_no_tracked_file_is_large() -> None:
    assert [(p.name, p.stat().st_size) for p in tracked() if p.stat().st_size > 300_000] == []


def test_every_test_asserts_something() -> None:
    silent: list[str] = []
    for path in tracked():
        if path.suffix == ".py" and path.name.startswith("test_"):
            for function in functions(ast.parse(path.read_text())):
                text = ast.unparse(function)
                if function.name.startswith("test_") and not re.search(r"\bassert|raises|check_|warns|expect", text):
                    silent.append(f"{path.name}::{function.name}")
    assert silent == []
