"""Models that are wrapped for several processes, where there is one: as they would be without.

While a program is captured, a parameter that `fully_shard` has made a DTensor is the share of the
only process, which is all of it, and what gathers the shares before each call does nothing. Nothing
is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from graphport.capture.trace import registries
from graphport.process import undo_on_exit
from graphport.tensors.subclasses import is_wrapper


def is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` has had the module, and what it has added is in force."""
    if not any(k.__name__ == "FSDPModule" for k in type(module).__mro__):
        return False
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return any(map(_is_gathering, hooks))


def _is_gathering(hook: Callable[..., Any]) -> bool:
    return getattr(hook, "__module__", "").startswith("torch.distributed.fsdp")


@contextmanager
def unshard(root: nn.Module | None) -> Iterator[None]:
    modules = [module for _, module in registries.named_modules(root)]
    sharded = [module for module in modules if is_sharded(module)]
    if not sharded or not all(map(_computes_as_it_is, sharded)):
        yield
        return
    changes: list[tuple[Any, Any, Any]] = []

    def replace(registry: Any, key: Any, new: Any) -> None:
        changes.append((registry, key, registry[key]))
        registry[key] = new

    def restore() -> None:
        for registry, key, old in reversed(changes):
            registry[key] = old

    with undo_on_exit(restore):
        for module in modules:
            for name, p in module._parameters.items():
                if is_wrapper(p) and hasattr(p, "to_local"):
                    local = p.to_local().detach()
                    replace(module._parameters, name, nn.Parameter(local, p.requires_grad))
        for module in sharded:
            for registry in (module._forward_pre_hooks, module._forward_hooks):
                for key, hook in registry.items():
                    if _is_gathering(hook):
                        replace(registry, key, _do_nothing)
        yield


def _computes_as_it_is(module: Any) -> bool:
    """Whether there is one process, and no policy of dtypes to compute in."""
    policy = module._get_fsdp_state()._mp_policy
    parameters = [p for p in module._parameters.values() if hasattr(p, "device_mesh")]
    return not (policy.param_dtype or policy.output_dtype) and all(map(is_wrapper, parameters))


def _do_nothing(*args: object, **kwargs: object) -> None:
    pass
