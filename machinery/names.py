"""What a generated program finds: modules to import, names that need no import, and stand-ins for gym.

A file of its own because this list grows with what models write, and the seal does not lean on it: a program can do
no more with `sys` or `pickle` than a sealed process can. A module is on the list if what it is for needs no system call
that worker.py refuses. So no os, pathlib, threading, asyncio, subprocess, socket, and no zoneinfo, which lives on disk.
"""
import importlib
import sys
import types
from typing import Any

MODULES = """abc argparse array ast base64 binascii bisect builtins calendar cmath cmd codecs collections colorsys
    contextlib contextvars copy copyreg csv dataclasses datetime decimal difflib enum errno fractions functools gc
    graphlib hashlib heapq hmac html inspect io ipaddress itertools json keyword locale logging math numbers operator
    pickle pprint queue random re reprlib sched secrets shlex statistics string struct sys textwrap time timeit token
    tokenize traceback types typing unicodedata uuid warnings weakref zlib""".split()
GIVEN = {
    "abc": "ABC abstractmethod", "copy": "deepcopy", "dataclasses": "dataclass field", "decimal": "Decimal",
    "collections": "Counter OrderedDict defaultdict deque namedtuple", "enum": "Enum IntEnum auto",
    "fractions": "Fraction", "functools": "cache lru_cache partial reduce",
    "itertools": "accumulate chain combinations combinations_with_replacement cycle permutations product",
    "typing": "Any Callable Dict Iterable List Literal NamedTuple Optional Sequence Set Tuple TypeVar Union",
}
GYM = ["gym", "gymnasium"]   # not installed, but `class MyEnv(gym.Env)` needs no more than the name
SPACES = "Box MultiBinary MultiDiscrete Dict Tuple Sequence Text Graph OneOf".split()
# imported on first use by the modules above, which a sealed process cannot
UNNOTICED = ["_strptime", "linecache", "html.parser", "shutil"] + [f"encodings.{name}" for name in (
    "ascii latin_1 iso8859_1 cp1252 cp437 utf_8_sig utf_16 utf_32 unicode_escape raw_unicode_escape rot_13 hex_codec "
    "base64_codec punycode idna").split()]


class Env:
    """The base class that programs like to name, empty."""

    def __class_getitem__(cls, types):   # Env[str, str]
        return cls

    def reset(self, seed=None, **options):
        pass


class Space:
    """A declaration such as Text(max_length=20). Nothing reads it, and it cannot sample."""

    def __init__(self, *arguments, **options):
        vars(self).update(options, arguments=arguments)


class Discrete(Space):
    def __init__(self, n, **options):
        super().__init__(n=n, **options)


def may_import(name: str) -> bool:
    """Of a name such as `json.decoder`: is its package among what a program may import?"""
    return name.split(".")[0] in [*MODULES, *GYM, "__future__"]


def register(*arguments, **options):
    """What a program says about itself to gym's list of environments."""


def stand_in(package: str) -> None:
    """Makes `import gym`, `import gym.spaces` and `from gym.core import Env` work."""
    spaces = {name: type(name, (Space,), {}) for name in SPACES} | {"Space": Space, "Discrete": Discrete}
    core = {"Env": Env, "ActType": Any, "ObsType": Any}
    contents = {"": core | {"Space": Space, "register": register}, ".core": core, ".spaces": spaces,
                ".envs": {"register": register}, ".envs.registration": {"register": register}}
    for name, things in contents.items():
        module = sys.modules[package + name] = types.ModuleType(package + name)
        vars(module).update(things)
        parent, _, last = (package + name).rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


def fresh_module() -> dict:
    """The module that a program finds itself in, as a dictionary."""
    for name in MODULES + UNNOTICED:   # a sealed process can import nothing from disk
        importlib.import_module(name)
    module = sys.modules["environment"] = types.ModuleType("environment")   # dataclasses look their module up
    space = vars(module)
    space.update({name: sys.modules[name] for name in MODULES}, Env=Env)
    for source, names in GIVEN.items():
        space.update({name: getattr(sys.modules[source], name) for name in names.split()})
    for package in GYM:
        stand_in(package)
    return space
