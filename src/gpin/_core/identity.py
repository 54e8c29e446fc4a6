"""The identity of a module: a hash that distinguishes it from others with parameters of the same shapes."""

import functools
import hashlib
import inspect
import types
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from gpin._core.errors import InputError

__all__ = ["fingerprint"]

LIBRARIES = ("torch", "numpy", "gpin", "builtins", "abc", "typing", "pydantic")
"""Packages whose classes and functions are identified by name; all others are identified by their code."""

TORCHS = frozenset(vars(nn.Module()))
"""The attributes that torch itself manages in every module, such as parameters, buffers, hooks and the mode."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.memory_format)


def fingerprint(module: nn.Module) -> str:
    """The sha256 of a module's identity; an attribute that cannot be described raises InputError.

    The hash covers the classes of the module and its submodules with their code, their attributes, all buffers, the
    values of frozen parameters (`requires_grad=False`), and the names, types and shapes of trainable parameters. The
    values of trainable parameters do not count: another random initialisation is the same model.
    """
    return hashlib.sha256(repr(_Description().module(module, "")).encode()).hexdigest()


class _Description:
    """Describes objects as nested tuples of text that are the same in every process; each object only once."""

    def __init__(self) -> None:
        # The objects are kept alive, so that no new object can reuse the id of a deleted one.
        self.seen: dict[int, tuple[int, Any]] = {}

    def module(self, module: nn.Module, where: str) -> Any:
        parts = []
        for name, part in module.named_modules():
            at = ".".join(filter(None, (where, name)))
            self.seen[id(part)] = (len(self.seen), part)
            own = sorted((key, value) for key, value in vars(part).items() if key not in TORCHS)
            attributes = [(key, self.value(value, f"{at}.{key}".lstrip("."))) for key, value in own]
            parameters = [
                (key, str(p.dtype), tuple(p.shape), None if p.requires_grad else _checksum(p))
                for key, p in part.named_parameters(recurse=False)
            ]
            buffers = [(key, self.tensor(b)) for key, b in part.named_buffers(recurse=False)]
            parts.append((name, self.type(type(part), at), attributes, parameters, buffers))
        return parts

    def tensor(self, tensor: Tensor) -> Any:
        return str(tensor.dtype), tuple(tensor.shape), _checksum(tensor)

    def value(self, value: Any, where: str) -> Any:
        """Describe any object by its content; an object of unknown state raises InputError."""
        if isinstance(value, Enum):
            return type(value).__qualname__, value.name
        if isinstance(value, (*PLAIN, PurePath)):
            return type(value).__name__, repr(value)
        if isinstance(value, np.generic):
            return type(value).__name__, repr(value.item())
        # These come before the check for objects already seen: whether Python shares constants between functions
        # depends on how their code was loaded.
        if isinstance(value, tuple):
            return type(value).__name__, [self.value(item, where) for item in value]
        if isinstance(value, frozenset):
            return "set", sorted(repr(self.value(item, where)) for item in value)
        if id(value) in self.seen:
            return "seen", self.seen[id(value)][0]
        self.seen[id(value)] = (len(self.seen), value)
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        if isinstance(value, nn.Module):
            return self.module(value, where)
        if isinstance(value, list):
            return "list", [self.value(item, where) for item in value]
        if isinstance(value, set):
            return "set", sorted(repr(self.value(item, where)) for item in value)
        if isinstance(value, dict | types.MappingProxyType):
            return "dict", [(self.value(key, where), self.value(item, where)) for key, item in value.items()]
        if isinstance(value, BaseModel):
            return self.type(type(value), where), repr(value.model_dump(mode="json"))
        if isinstance(value, type):
            return self.type(value, where)
        if isinstance(value, functools.partial):
            return "partial", [self.value(part, where) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, types.MethodType):
            return "method", self.value(value.__func__, where), self.value(value.__self__, where)
        if isinstance(value, types.FunctionType):
            return self.function(value, where)
        if isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType):
            return "function", value.__qualname__
        if hasattr(value, "__dict__"):
            own = sorted(vars(value).items())
            return self.type(type(value), where), [(key, self.value(item, f"{where}.{key}")) for key, item in own]
        raise InputError(
            f"this model cannot be identified: {where} is a {type(value).__name__}, whose state is unknown; name the "
            "run with identity=, or train without a folder"
        )

    def type(self, kind: type, where: str) -> Any:
        """Describe a class by its name and, outside `LIBRARIES`, by its code and that of its bases."""
        named = (kind.__module__, kind.__qualname__)
        if _of_library(kind) or id(kind) in self.seen:
            return named
        self.seen[id(kind)] = (len(self.seen), kind)
        members = []
        for name, member in sorted(vars(kind).items()):
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(member, types.FunctionType):
                members.append((name, self.function(member, where)))
            elif isinstance(member, PLAIN) and not name.startswith("__"):
                members.append((name, self.value(member, where)))
        return (*named, members, [self.type(base, where) for base in kind.__bases__])

    def function(self, function: types.FunctionType, where: str) -> Any:
        """Describe a function by its name and, outside `LIBRARIES`, by its code, defaults and closure."""
        function = inspect.unwrap(function)
        named = (function.__module__, function.__qualname__)
        if _of_library(function):
            return named
        # The cell `__class__`, which `super()` uses, is empty while the class is being created.
        names = function.__code__.co_freevars
        cells = zip(names, function.__closure__ or (), strict=True)
        enclosed = [self.value(cell.cell_contents, where) for name, cell in cells if name != "__class__"]
        defaults = self.value((function.__defaults__, function.__kwdefaults__), where)
        return function.__qualname__, self.code(function.__code__, function.__doc__, where), defaults, enclosed

    def code(self, code: types.CodeType, doc: str | None, where: str) -> Any:
        """Describe code by its instructions, names and constants, without line numbers and the docstring."""
        constants = [
            self.code(constant, None, where) if isinstance(constant, types.CodeType) else self.value(constant, where)
            for constant in code.co_consts
            if doc is None or constant != doc
        ]
        return hashlib.sha256(code.co_code).hexdigest(), code.co_names, code.co_varnames, constants


def _of_library(thing: Any) -> bool:
    return (thing.__module__ or "builtins").split(".")[0] in LIBRARIES


def _checksum(tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(values.view(torch.uint8).numpy().tobytes() if values.numel() else b"").hexdigest()
