"""Mutants of a program: one small change each. Invariant: a mutant parses and differs in text; whether it behaves otherwise is
found by running it, never assumed."""

import ast
import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Mult, ast.Div),
    ast.Mod: (ast.Mult, ast.FloorDiv),
    ast.Pow: (ast.Mult,),
}


def mutants(program: str, stream: Random, most: int = 40) -> list[tuple[str, str]]:
    """Up to `most` (what was changed, program) of one reference; drawn from all if there are more."""
    tree = ast.parse(program)
    plain, found = ast.unparse(tree), dict[str, str]()
    for index, node in enumerate(ast.walk(tree)):
        for what, change in changes(node):
            other = copy.deepcopy(tree)
            change(list(ast.walk(other))[index])
            text = ast.unparse(ast.fix_missing_locations(other))
            if text != plain:
                found.setdefault(f"{text}\n", f"line {getattr(node, 'lineno', 0)}: {what}")
    pairs = [(what, text) for text, what in found.items()]
    return pairs if len(pairs) <= most else stream.sample(pairs, most)


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    """What can be changed at a node: (what, a function that changes the same node of a copy)."""
    match node:
        case ast.Compare():
            for k, op in enumerate(node.ops):
                for other in COMPARISONS.get(type(op), ()):
                    yield f"{type(op).__name__} becomes {other.__name__}", _setter("ops", k, other)
        case ast.BinOp():
            for other in OPERATORS.get(type(node.op), ()):
                yield f"{type(node.op).__name__} becomes {other.__name__}", _field("op", lambda _, o=other: o())
        case ast.BoolOp():
            turned = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield f"{type(node.op).__name__} becomes {turned.__name__}", _field("op", lambda _: turned())
            yield "the last condition is dropped", _field("values", lambda n: n.values[:-1] or n.values)
            yield "the first condition is dropped", _field("values", lambda n: n.values[1:] or n.values)
        case ast.Constant(value=value):
            yield from _constants(value)
        case ast.While():
            yield "its condition is always false", _field("test", lambda _: ast.Constant(False))
        case ast.If() | ast.IfExp():
            yield "its condition is negated", _field("test", lambda n: ast.UnaryOp(ast.Not(), n.test))
            yield "its condition is always false", _field("test", lambda _: ast.Constant(False))
            yield "its condition is always true", _field("test", lambda _: ast.Constant(True))
        case ast.Return(value=ast.expr()):
            yield "it returns None", _field("value", lambda _: ast.Constant(None))
        case ast.Call(args=[_, *_]):
            yield "only the first argument is returned", _replace
        case ast.FunctionDef():
            for k in range(len(node.body)):
                if len(node.body) > 1:
                    yield "a statement is left out", _dropper(k)
        case _:
            return


def _constants(value: object) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    others: tuple[object, ...] = ()
    if isinstance(value, bool):
        others = (not value,)
    elif isinstance(value, int | float):
        others = (value + 1, value - 1, 0)
    elif isinstance(value, str) and value:
        others = ("", value + "x")
    for other in others:
        yield f"{value!r} becomes {other!r}", _field("value", lambda _, o=other: o)


def _field(name: str, make: Callable[[Any], object]) -> Callable[[ast.AST], None]:
    return lambda node: setattr(node, name, make(node))


def _setter(name: str, index: int, kind: type[ast.cmpop]) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        getattr(node, name)[index] = kind()

    return change


def _dropper(index: int) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        del getattr(node, "body")[index]  # noqa: B009 (every node with a body has the attribute)

    return change


def _replace(node: ast.AST) -> None:
    """Make a call the identity: `f(a, b)` as `(lambda first, *rest: first)(a, b)`."""
    if isinstance(node, ast.Call):
        node.func = ast.parse("(lambda first, *rest, **named: first)", mode="eval").body
