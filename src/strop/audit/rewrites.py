"""Rewrites of a Python program that behave the same. Invariant: a rewrite marked exact returns, raises and changes what the
original does for every input; only messages, names inside and layout differ where it says so."""

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite.

    Args:
        name: short name.
        what: what was changed, for people.
        text: the program.
        exact: it behaves the same for certain; False where the texts of messages differ, which a task may ask for.
    """

    name: str
    what: str
    text: str
    exact: bool = True


def rewrites(program: str) -> list[Rewrite]:
    """All rewrites that change the text of a program."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    plain = ast.unparse(tree)
    out = [
        Rewrite("comments", "a comment and blank lines added", f"# one solution\n\n{program}\n\n# end\n"),
        Rewrite("reformatted", "laid out anew", f"{plain}\n"),
    ]
    steps: tuple[tuple[str, str, Callable[[], ast.NodeTransformer], bool], ...] = (
        ("renamed locals", "local variables have other names", Renamed, True),
        (
            "turned comparisons",
            "`x is None` as `None is x`, `not (a == b)` for `a != b` of plain constants",
            Turned,
            True,
        ),
        ("turned branches", "branches swapped, their condition negated", Swapped, True),
        ("named result", "results go through a variable before they are returned", Named, True),
        ("wrapped", "the body stands inside `if True:`", Wrapped, True),
        ("docstring", "a docstring added", Documented, True),
        ("other messages", "the texts of exceptions and prints differ", Reworded, False),
    )
    for name, what, make, exact in steps:
        changed = ast.fix_missing_locations(make().visit(copy.deepcopy(tree)))
        text = ast.unparse(changed)
        if text != plain:
            out.append(Rewrite(name, what, f"{text}\n", exact))
    return [rewrite for rewrite in out if rewrite.text != program]


class Renamed(ast.NodeTransformer):
    """Gives local variables of functions other names. Parameters keep theirs: they can be given by name."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Rename inside one function, if nothing in it looks at names."""
        inner = [n for n in ast.walk(node) if n is not node]
        awkward = (ast.Global, ast.Nonlocal, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        calls = {n.func.id for n in inner if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        if any(isinstance(n, awkward) for n in inner) or calls & {"locals", "vars", "eval", "exec", "dir", "globals"}:
            return node
        taken = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        stored = {n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - taken
        names = {name: f"{name}_held" for name in sorted(stored)}
        for n in inner:
            if isinstance(n, ast.Name) and n.id in names:
                n.id = names[n.id]
            elif isinstance(n, ast.ExceptHandler) and n.name in names:
                n.name = names[n.name]
        return node


class Turned(ast.NodeTransformer):
    """Turns comparisons round: identity with None, (in)equality with a plain constant."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Turn one comparison of two operands."""
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.comparators[0], ast.Constant):
            return node
        op, left, right = node.ops[0], node.left, node.comparators[0]
        if isinstance(op, ast.Is):
            return ast.Compare(right, [ast.Is()], [left])
        if isinstance(op, ast.IsNot):
            return ast.UnaryOp(ast.Not(), ast.Compare(right, [ast.Is()], [left]))
        return node


class Swapped(ast.NodeTransformer):
    """Swaps the branches of `if` statements and expressions."""

    def visit_If(self, node: ast.If) -> ast.AST:
        """`if c: a else: b` as `if not c: b else: a`; without an else the other branch does nothing."""
        self.generic_visit(node)
        return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse or [ast.Pass()], node.body)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """`a if c else b` as `b if not c else a`."""
        self.generic_visit(node)
        return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)


class Named(ast.NodeTransformer):
    """Lets results go through a variable: `return f(x)` as `result_held = f(x); return result_held`."""

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.stmt]:
        """One return with a value."""
        if node.value is None:
            return node
        name = "result_held_"
        return [ast.Assign([ast.Name(name, ast.Store())], node.value), ast.Return(ast.Name(name, ast.Load()))]


class Wrapped(ast.NodeTransformer):
    """Puts the body of a function inside `if True:`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Wrap all but the docstring and declarations."""
        head = [s for s in node.body[:1] if _is_text(s)]
        rest = node.body[len(head) :]
        if not rest or any(isinstance(s, ast.Global | ast.Nonlocal) for s in rest):
            return node
        node.body = [*head, ast.If(ast.Constant(True), rest, [])]
        return node


class Documented(ast.NodeTransformer):
    """Gives functions without a docstring one."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Add it to functions at the top."""
        if not _is_text(node.body[0]):
            node.body.insert(0, ast.Expr(ast.Constant("Do what the task asks for.")))
        return node


class Reworded(ast.NodeTransformer):
    """Gives exceptions and prints other texts."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """`raise E("text")` with another text."""
        if isinstance(node.exc, ast.Call):
            node.exc.args = [_reworded(a) for a in node.exc.args]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`print("text")` with another text."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            node.args = [_reworded(a) for a in node.args]
        return node


def _reworded(node: ast.expr) -> ast.expr:
    text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    return ast.Constant("something else was given") if text else node


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
