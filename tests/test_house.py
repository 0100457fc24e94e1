"""The house rules that a test can hold us to: sizes, layers, where model text must never go."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = [ROOT / f"{name}.py" for name in "train designer agent sandbox regret grpo evaluate".split()]
DRAWERS = "machinery settings laptop benchmarks study".split()
PRODUCT = sorted([*ROOT.glob("*.py"), *(path for drawer in DRAWERS for path in (ROOT / drawer).glob("*.py"))])


def names(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PRODUCT, ids=names)
def test_a_file_is_one_concept_of_at_most_300_lines_and_says_what_it_teaches(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert ast.get_docstring(ast.parse(text)), "the first lines say what the file teaches"


OWN_PROGRAMS = {"machinery/worker.py",   # runs what models write, sealed
                "laptop/texts.py"}       # plays programs of the laptop's own grammar, before there is a model


def test_nothing_a_model_wrote_is_executed_or_unpickled_outside_the_sandbox():
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                risky = name in ("exec", "eval") or name.split(".")[0] == "pickle"
                if name == "torch.load":
                    risky = not any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
                assert not risky or names(path) in OWN_PROGRAMS, f"{names(path)}:{node.lineno}: {name}"


def test_no_bare_except():
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{path.name}:{node.lineno}"


# --- table and drawers ---

def imports(path):
    """Every module that is imported anywhere in a file, within functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{names(path)}:{node.lineno}: relative imports hide their layer"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("drawer", DRAWERS)
def test_no_drawer_needs_what_lies_above_it(drawer):
    above = {"train", "evaluate", "tests"}
    if drawer == "machinery":
        above |= set(DRAWERS) - {"machinery"}
    for path in (ROOT / drawer).glob("*.py"):
        assert not above & {module.split(".")[0] for module in imports(path)}, names(path)


def test_the_table_stays_small():
    lines = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in TABLE}
    assert lines["train"] <= 160 and sum(lines.values()) <= 1800
    assert {path.stem for path in ROOT.glob("*.py")} == set(lines)
    ignored = {"tests", "corpus", "runs", "shared", "__pycache__", "build", "dist"}
    folders = {path.parent.name for path in ROOT.glob("*/*.py")} - ignored
    assert len(folders) <= 5 and folders == set(DRAWERS)


def test_nobody_asks_a_setting_or_a_recipe_for_its_name():
    """Outside settings/. That an environment belongs to the setting in use compares two names, and asks for none."""
    for path in PRODUCT:
        if path.parent.name == "settings":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            named = [ast.unparse(side) for side in (node.left, *node.comparators)]
            named = [side for side in named if side.endswith((".setting", "setting.name", "recipe"))]
            both_are_names = len(named) == 2
            an_unknown_recipe = ast.unparse(node) == "recipe not in RECIPES"
            assert not named or both_are_names or an_unknown_recipe, f"{names(path)}:{node.lineno}: {ast.unparse(node)}"
