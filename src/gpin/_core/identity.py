"""The identity of a module: a hash that distinguishes it from others with parameters of the same shapes."""

import collections
import dis
import functools
import hashlib
import logging
import sys
import types
import weakref
from collections.abc import Iterator
from enum import Enum
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from gpin._core.config import Config
from gpin._core.errors import InputError

__all__ = ["fingerprint", "same_structure"]

LIBRARIES = frozenset({"torch", "numpy", "gpin", "pydantic", *sys.stdlib_module_names})
"""Packages whose classes and functions are identified by name; all others are identified by their code."""

TORCHS = frozenset(vars(nn.Module()))
"""The attributes that torch itself manages in every module, such as parameters, buffers, hooks and the mode."""

IGNORED = TORCHS | {"_gpin_calibrations", "_gpin_fingerprints", "_gpin_temperatures"}
"""The attributes that are not part of the identity: what a `gpin.VAE` remembers of its training."""

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
GRADIENT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

PLAIN = frozenset(
    {type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, range, slice}
    | {torch.dtype, torch.device, torch.memory_format, torch.layout}
    | {PosixPath, WindowsPath, PurePosixPath, PureWindowsPath, types.GenericAlias, types.UnionType}
)
"""The types whose representation is their state. A subclass may hold more and is not one of them."""


class _Field(NamedTuple):
    field: None


SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType, type(vars(_Field)["field"]))
"""Class attributes that only lead to the state of an instance."""


def fingerprint(module: nn.Module) -> str:
    """The sha256 of a module's identity; an attribute that cannot be described raises InputError.

    The hash covers the classes of the module and its submodules with their code and class attributes, the functions
    and global variables that this code uses, the attributes, all buffers, the values of frozen parameters
    (`requires_grad=False`), hooks, and the names, types and shapes of trainable parameters. The values of trainable
    parameters do not count: another random initialisation is the same model. Of installed packages, global variables
    do not count; of torch, numpy, pydantic, gpin and the standard library, only names do.
    """
    return hashlib.sha256(repr(_described(module, tensors=True)).encode()).hexdigest()


def same_structure(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules differ in no more than the values and the precision of their parameters and buffers."""
    return repr(_described(one, tensors=False)) == repr(_described(other, tensors=False))


def _described(module: nn.Module, tensors: bool) -> Any:
    description = _Description(tensors)
    try:
        return description.module(module, "")
    except InputError:
        raise
    except Exception as error:  # an object of the user's may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        _refuse(f"{description.where or 'it'} cannot be read ({reason})")


def _refuse(problem: str) -> NoReturn:
    raise InputError(
        f"this model cannot be identified: {problem}; name the run with identity=, or train without a folder"
    )


class _Description:
    """Describes objects as nested tuples of text that are the same in every process; each object only once.

    Arguments:
        tensors: Describe the values and types of tensors, and not only their shapes.
    """

    def __init__(self, tensors: bool) -> None:
        self.tensors = tensors
        # The objects are kept alive, so that no new object can reuse the id of a deleted one.
        self.seen: dict[int, tuple[int, Any]] = {}
        self.where = ""

    def module(self, module: nn.Module, where: str) -> Any:
        parts = []
        for parameter in module.parameters():  # attributes may refer to them, as in nn.LSTM
            self.seen[id(parameter)] = (len(self.seen), parameter)
        for name, part in module.named_modules():
            at = ".".join(filter(None, (where, name)))
            self.seen[id(part)] = (len(self.seen), part)
            own = sorted((key, value) for key, value in vars(part).items() if key not in IGNORED)
            attributes = [(key, self.value(value, f"{at}.{key}".lstrip("."))) for key, value in own]
            parameters = [(key, self.parameter(p, at)) for key, p in part.named_parameters(recurse=False)]
            buffers = [(key, self.tensor(b)) for key, b in part.named_buffers(recurse=False)]
            hooks = self.hooks(part, HOOKS, at)
            parts.append((name, self.type(type(part), at), attributes, parameters, buffers, hooks))
        return parts

    def parameter(self, parameter: nn.Parameter, where: str) -> Any:
        hooks = self.hooks(parameter, GRADIENT_HOOKS, where)
        if parameter.requires_grad:
            return self.tensors and str(parameter.dtype), tuple(parameter.shape), hooks
        return "frozen", self.tensor(parameter), hooks

    def hooks(self, owner: nn.Module | Tensor, names: tuple[str, ...], where: str) -> Any:
        registered = [(name, getattr(owner, name, None) or {}) for name in names]
        return [
            (name, key in getattr(owner, f"{name}_with_kwargs", ()), self.value(hook, f"a hook of {where or 'it'}"))
            for name, hooks in registered
            for key, hook in hooks.items()
        ]

    def tensor(self, tensor: Tensor) -> Any:
        return (str(tensor.dtype), tuple(tensor.shape), _checksum(tensor)) if self.tensors else tuple(tensor.shape)

    def value(self, value: Any, where: str) -> Any:
        """Describe any object by its content; an object of unknown state raises InputError."""
        self.where = where
        kind = type(value)
        if isinstance(value, Enum):
            return kind.__module__, kind.__qualname__, value.name, self.value(value.value, where)
        if kind in PLAIN or kind.__module__ == "typing":
            return kind.__name__, repr(value)
        if isinstance(value, np.generic) and kind.__module__ == "numpy":
            return kind.__name__, repr(value.item())
        # These come before the check for objects already seen: whether Python shares constants between functions
        # depends on how their code was loaded.
        if kind in (tuple, torch.Size):
            return kind.__name__, [self.value(item, where) for item in value]
        if kind is frozenset:
            return "set", sorted(repr(self.value(item, where)) for item in value)
        if isinstance(value, type):
            return self.type(value, where)
        if id(value) in self.seen:
            return "seen", self.seen[id(value)][0]
        self.seen[id(value)] = (len(self.seen), value)
        if kind in (Tensor, nn.Parameter, nn.Buffer):
            return self.tensor(value)
        if kind is np.ndarray and value.dtype != object:
            return str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        if isinstance(value, nn.Module):
            return self.module(value, where)
        if kind is list:
            return "list", [self.value(item, where) for item in value]
        if kind is set:
            return "set", sorted(repr(self.value(item, where)) for item in value)
        if kind in (dict, collections.OrderedDict, types.MappingProxyType):
            return "dict", [(self.value(key, where), self.value(item, where)) for key, item in value.items()]
        if _is_named_tuple(kind):
            return self.type(kind, where), [self.value(item, where) for item in value]
        if isinstance(value, BaseModel):
            record = value.model_dump(mode="json")
            return self.type(kind, where), repr(value.without_unused(record) if isinstance(value, Config) else record)
        if kind is functools.partial:
            return "partial", [self.value(part, where) for part in (value.func, value.args, value.keywords)]
        if kind in (property, functools.cached_property):
            functions = ("func",) if kind is functools.cached_property else ("fget", "fset", "fdel")
            return kind.__name__, [self.value(getattr(value, name), where) for name in functions]
        if kind in (staticmethod, classmethod):
            return kind.__name__, self.value(value.__func__, where)
        if kind is types.MethodType:
            return "method", self.value(value.__func__, where), self.value(value.__self__, where)
        if kind is types.FunctionType:
            return self.function(value, where)
        if kind is types.BuiltinFunctionType:
            owner = value.__self__
            bound = None if isinstance(owner, types.ModuleType | type | None) else self.value(owner, where)
            return "function", value.__module__, value.__qualname__, bound
        if kind in (types.MethodDescriptorType, types.WrapperDescriptorType):
            return "function", value.__qualname__
        if kind is np.ufunc:
            return "function", value.__name__
        if kind.__name__ == "_lru_cache_wrapper":
            return "cached", self.value(value.__wrapped__, where)
        if kind is weakref.ReferenceType:
            return "reference", self.value(value(), where)
        if kind is types.ModuleType:
            return "module", value.__name__
        if kind is logging.Logger:
            return "logger", value.name
        if hasattr(value, "__dict__") and not _hides_state(kind):
            own = sorted(vars(value).items())
            return self.type(kind, where), [(key, self.value(item, f"{where}.{key}")) for key, item in own]
        _refuse(f"{where} is a {kind.__name__}, whose state is unknown")

    def type(self, kind: type, where: str) -> Any:
        """Describe a class by its name and, outside `LIBRARIES`, by its members and bases."""
        named = (kind.__module__, kind.__qualname__)
        if _package(kind.__module__) in LIBRARIES or id(kind) in self.seen:
            return named
        self.seen[id(kind)] = (len(self.seen), kind)
        if issubclass(kind, Enum):
            return (*named, [(member.name, self.value(member.value, where)) for member in kind])
        members = [
            (name, self.value(member, f"{kind.__qualname__}.{name}"))
            for name, member in sorted(vars(kind).items())
            if _is_state(name, member)
        ]
        return (*named, members, [self.type(base, where) for base in kind.__bases__])

    def function(self, function: types.FunctionType, where: str) -> Any:
        """Describe a function by its name and closure and, outside `LIBRARIES`, by its code, defaults and globals."""
        home = function.__globals__.get("__name__") or ""
        # The cell `__class__`, which `super()` uses, is empty while the class is being created.
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        enclosed = [self.value(cell.cell_contents, where) for name, cell in cells if name != "__class__"]
        if _package(home) in LIBRARIES:
            return home, function.__code__.co_name, function.__qualname__, enclosed
        code = self.code(function.__code__, function.__doc__, where)
        defaults = self.value((function.__defaults__, function.__kwdefaults__), where)
        known = [] if _is_installed(home) else dict(_globals(function.__code__, function.__globals__)).items()
        used = [(name, self.value(value, f"the global variable {name}")) for name, value in known]
        return function.__qualname__, code, defaults, enclosed, used

    def code(self, code: types.CodeType, doc: str | None, where: str) -> Any:
        """Describe code by its instructions, names and constants, without line numbers and the docstring."""
        constants = [
            self.code(constant, None, where) if isinstance(constant, types.CodeType) else self.value(constant, where)
            for constant in code.co_consts
            if doc is None or constant != doc
        ]
        return hashlib.sha256(code.co_code).hexdigest(), code.co_names, code.co_varnames, constants


def _globals(code: types.CodeType, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The global variables that code reads, and the attributes that it reads of the user's modules, `helpers.scale`."""
    name, value = "", None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval in names:
            name, value = instruction.argval, names[instruction.argval]
        elif (
            instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
            and isinstance(value, types.ModuleType)
            and hasattr(value, instruction.argval)
        ):
            name, value = f"{name}.{instruction.argval}", getattr(value, instruction.argval)
        else:
            name, value = "", None
        if name:
            yield name, value
        if isinstance(value, types.ModuleType) and _is_installed(value.__name__):
            value = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant, names)


def _is_state(name: str, member: Any) -> bool:
    """Whether a class attribute is part of the class's identity: not what Python itself adds to every class."""
    if name.startswith("__annotate") or name == "_abc_impl" or isinstance(member, SLOTS):
        return False
    special = name.startswith("__") and name.endswith("__")
    return not special or isinstance(member, types.FunctionType | property | staticmethod | classmethod)


def _is_named_tuple(kind: type) -> bool:
    return kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not kind.__dictoffset__


def _hides_state(kind: type) -> bool:
    """Whether instances hold more than their `__dict__`: slots, or the data of a type that is written in C."""
    pointer = object.__basicsize__ // 2
    known = object.__basicsize__ + pointer * ((kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return kind.__basicsize__ > known or kind.__itemsize__ > 0


def _package(module: str | None) -> str:
    return (module or "builtins").split(".")[0]


def _is_installed(module: str) -> bool:
    """Whether a module belongs to the standard library or an installed package and not to the user's own code."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return _package(module) in LIBRARIES or "site-packages" in file or "dist-packages" in file


def _checksum(tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(values.view(torch.uint8).numpy().tobytes() if values.numel() else b"").hexdigest()
