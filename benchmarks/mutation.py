"""Change one operator, number, condition or statement of a core module at a time, and see whether its tests fail.

    python -m benchmarks.mutation --seconds 480 --seed 0 [MODULE …]

Mutants are drawn by the seed, until the time is over. Prints each mutant that survives and the share of the others;
a survivor is a gap in the tests, or changes nothing. Each mutant runs in a fork of a process that has imported torch
and pytest: mutmut and cosmic-ray start a new one for each, or need all tests to pass through them first.
"""

import argparse
import ast
import contextlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = {
    "medic/openset/metrics.py": "tests/openset/test_metrics.py tests/equivalence/test_openset.py",
    "medic/openset/thresholds.py": "tests/openset/test_thresholds.py",
    "medic/openset/scores.py": "tests/openset/test_scores.py tests/equivalence/test_openset.py",
    "medic/tasks/grid.py": "tests/tasks",
    "medic/tasks/partition.py": "tests/tasks",
    "medic/tasks/samplers.py": "tests/tasks tests/equivalence/test_samplers.py tests/methods/test_hyperparameters.py",
    "medic/tasks/lagged.py": "tests/tasks tests/equivalence/test_samplers.py tests/methods/test_hyperparameters.py",
    "medic/strategies/inner.py": "tests/strategies tests/equivalence/test_strategies.py",
    "medic/strategies/multi_step.py": "tests/strategies tests/equivalence/test_strategies.py",
    "medic/strategies/two_step.py": "tests/strategies tests/equivalence/test_strategies.py",
    "medic/strategies/trajectories.py": "tests/strategies tests/equivalence/test_strategies.py",
    "medic/strategies/masks.py": "tests/strategies/test_masks.py tests/equivalence/test_penalties.py tests/methods",
    "medic/data/holdout.py": "tests/data/test_holdout.py tests/data/test_problem.py",
    "medic/data/problem.py": "tests/data/test_problem.py tests/data/test_holdout.py tests/data/test_noise.py",
    "medic/data/classes.py": "tests/data/test_problem.py tests/runs/test_target.py",
    "medic/training/averaging.py": "tests/training/test_averaging.py",
    "medic/evaluation/selection.py": "tests/runs/test_selection.py",
    "medic/runs/seal.py": "tests/runs/test_damaged.py",
}
"""Core modules, and the tests that belong to each."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SKIPPED = {"annotation", "returns", "decorator_list", "type_comment"}
"""Parts of a node that have no effect when it runs; nor has `zip(…, strict=True)` unless there is a mistake."""


@dataclass(frozen=True)
class Mutant:
    """A change of one node: `parent.field`, or an element of that list, becomes `new`."""

    module: str
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST
    line: int
    text: str

    def apply(self) -> None:
        """Change the tree."""
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.index] = self.new


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may take the place of a node."""
    match node:
        case ast.cmpop() | ast.operator() | ast.boolop() if type(node) in SWAPS:
            yield SWAPS[type(node)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def mutants(module: str, tree: ast.AST) -> Iterator[Mutant]:
    """Yield every mutant of a tree, except in annotations, messages and assertions."""
    for field, value in ast.iter_fields(tree):
        if field in SKIPPED or getattr(tree, "arg", None) == "strict":
            continue
        several = isinstance(value, list)
        for index, node in enumerate(value if several else [value]):
            if not isinstance(node, ast.AST) or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
                continue
            position = index if several else None
            line = getattr(node, "lineno", getattr(tree, "lineno", 0))
            new = list(changes(node))
            if field == "test" or (field == "ifs" and isinstance(tree, ast.comprehension)):
                new.append(ast.UnaryOp(ast.Not(), node))
            for other in new:
                original = node if isinstance(node, ast.expr | ast.stmt) else tree
                text = f"{_unparsed(original)}  →  {_unparsed(other)}"
                yield Mutant(module, tree, field, position, other, line, text)
            yield from mutants(module, node)


def _unparsed(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:100] if isinstance(node, ast.expr | ast.stmt) else type(node).__name__


def outcome(tree: ast.Module, mutant: Mutant | None, module: str, limit: float) -> str:
    """Run the tests of a module in a fork, with a mutant in its place: passed, failed or hangs."""

    def run() -> None:
        import pytest

        if mutant is not None:
            mutant.apply()
        code = compile(ast.fix_missing_locations(tree), str(ROOT / module), "exec")
        real = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> Any:
            return code if Path(loader.path) == ROOT / module else real(loader, name)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        options = [*TESTS[module].split(), "-x", "-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        os._exit(int(pytest.main(options)))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(limit)
    if child.is_alive():
        child.kill()
        child.join()
        return "hangs"
    return {0: "passed"}.get(child.exitcode or 0, "failed")


def _import_libraries() -> None:
    """Import what medic and its tests import, but leave medic itself to each mutant."""
    for name in ("hypothesis", "medic.cli.train", "medic.runs.train", "pytest", "sklearn.metrics", "xdist.plugin"):
        import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "medic"]:
        del sys.modules[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["OMP_NUM_THREADS"] = "1"
    _import_libraries()
    began, trees, drawn, limits = time.monotonic(), {}, [], {}
    for module in arguments.modules:
        trees[module] = ast.parse((ROOT / module).read_text())
        drawn += list(mutants(module, trees[module]))
    random.Random(arguments.seed).shuffle(drawn)
    print(f"{len(drawn)} mutants of {len(arguments.modules)} modules", flush=True)
    killed, survivors = 0, []
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        for mutant in drawn:
            if time.monotonic() - began > arguments.seconds:
                break
            module = mutant.module
            if module not in limits:
                started = time.monotonic()
                if outcome(trees[module], None, module, 600) != "passed":
                    print(f"the tests of {module} fail without a mutant")
                    return 2
                limits[module] = 5 * (time.monotonic() - started) + 10
            if outcome(trees[module], mutant, module, limits[module]) == "passed":
                survivors.append(mutant)
                print(f"survived {module}:{mutant.line}: {mutant.text}", flush=True)
            else:
                killed += 1
    tried = killed + len(survivors)
    print(f"{killed} of {tried} mutants killed, {killed / max(1, tried):.1%}, seed {arguments.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
