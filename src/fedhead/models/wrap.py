"""Conversion of a user's module to a `SplitModel`."""

from __future__ import annotations

import copy
import difflib

from torch import fx, nn

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.log import logger
from fedhead.models.origin import Origin
from fedhead.models.plain_attention import use_plain_attention
from fedhead.models.repair import fix
from fedhead.models.split_model import Placeholder, SplitModel


def split(module: nn.Module, classifier: str | None = None, projection: str | None = None) -> SplitModel:
    """Wrap any module as a `SplitModel`.

    The module itself is not changed: the parts are copies. The classifier must be linear and applied last, directly
    after the projection if there is one. Layers that don't run on every executor are replaced if possible (see
    `fedhead.models.repair.fix`). Hugging Face models get an attention that can be stacked.

    Args:
        module: Module that maps inputs to logits, or to an object with `.logits`, such as a Hugging Face model.
        classifier: Dotted name of its classifier; by default `fc`, or else the last Linear layer.
        projection: Dotted name of the projection, if it has one.

    Returns:
        The model in parts.

    Raises:
        BadInput: If a name is unknown or the module can't be split there.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> model = split(net, classifier="3")
    >>> model.features, model.classes
    (32, 10)
    """
    require(
        not any(nn.parameter.is_lazy(p) for p in module.parameters()),
        f"{type(module).__name__} has lazy layers without weights: run one batch through it first",
    )
    classifier = _last_linear(module) if classifier is None else classifier
    body = copy.deepcopy(module)
    use_plain_attention(body)
    head = _find(body, classifier, "classifier")
    _refuse_odd_classifier(body, classifier, head)
    projection_module = None if projection is None else _find(body, projection, "projection")
    require(
        projection is None or not _overlap(classifier, projection),
        f"projection {projection!r} and classifier {classifier!r} overlap: name two separate submodules",
    )
    body.set_submodule(classifier, Placeholder())
    if projection is not None:
        body.set_submodule(projection, Placeholder())
    _refuse_shared(body, projection_module, head)
    _refuse_wrong_order(body, classifier, projection)
    model = fix(SplitModel(body, head, projection_module))
    model.origin = Origin(copy.deepcopy(module), classifier, projection)
    return model


def _last_linear(module: nn.Module) -> str:
    """Return the default classifier: `fc`, or the last Linear layer."""
    linear: list[str] = [name for name, child in module.named_modules() if isinstance(child, nn.Linear) and name]
    if "fc" in linear or not linear:
        return "fc"
    logger.info("the classifier of %s is %r, its last Linear layer", type(module).__name__, linear[-1])
    return linear[-1]


def _find(module: nn.Module, name: str, role: str) -> nn.Module:
    """Return the submodule with a dotted name, or raise an error that suggests the closest one."""
    modules: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if name in modules and name:
        return modules[name]
    linear = [n for n, m in modules.items() if isinstance(m, nn.Linear) and n]
    near = difflib.get_close_matches(name, [n for n in modules if n], n=1, cutoff=0.5) or linear[-1:]
    hint = f": did you mean {near[0]!r}?" if near else "."
    listed = f" Linear layers: {', '.join(linear)}" if linear else " It has no Linear layer"
    raise BadInput(f"{type(module).__name__} has no submodule {name!r} to use as {role}{hint}{listed}")


def _refuse_odd_classifier(module: nn.Module, name: str, head: nn.Module) -> None:
    if isinstance(getattr(head, "in_features", None), int) and isinstance(getattr(head, "out_features", None), int):
        return
    inside = [f"{name}.{n}" for n, m in head.named_modules() if isinstance(m, nn.Linear)]
    fix = f"name its Linear layer: classifier={inside[-1]!r}" if inside else "name a Linear layer"
    raise BadInput(f"classifier {name!r} of {type(module).__name__} is {type(head).__name__}, not linear: {fix}")


def _overlap(a: str, b: str) -> bool:
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


def _refuse_shared(extractor: nn.Module, projection: nn.Module | None, classifier: nn.Module) -> None:
    """Check that no parameter is tied across two parts, since parts are sent and trained separately."""
    owners: dict[int, str] = {}
    for part, module in (("extractor", extractor), ("projection", projection), ("classifier", classifier)):
        for name, parameter in module.named_parameters() if module is not None else ():
            before = owners.setdefault(id(parameter), part)
            require(before == part, f"parameter {name!r} of the {part} is tied to the {before}: give each part its own")


class _Tracer(fx.Tracer):
    """Tracer that records placeholders as single calls, like torch's own layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is a single call in the graph."""
        return isinstance(m, Placeholder) or super().is_leaf_module(m, module_qualified_name)


def _refuse_wrong_order(extractor: nn.Module, classifier: str, projection: str | None) -> None:
    """Check that the classifier is applied last, if the module can be traced without data.

    Modules that can't be traced are checked later by `check`, which runs a batch.
    """
    try:
        graph = _Tracer().trace(extractor)
    except Exception:  # tracing runs the user's forward, which may raise any exception
        return
    calls = {str(node.target): node for node in graph.nodes if node.op == "call_module"}
    last = next(node for node in graph.nodes if node.op == "output").args[0]
    name = type(extractor).__name__
    if classifier not in calls:
        raise BadInput(f"classifier {classifier!r} is never applied in {name}: name the layer that gives the logits")
    if last is not calls[classifier]:
        raise BadInput(f"classifier {classifier!r} is not the last layer applied in {name}: name the last Linear layer")
    if projection is None:
        return
    require(
        projection in calls and calls[classifier].args == (calls[projection],),
        f"projection {projection!r} of {name} does not feed classifier {classifier!r} directly",
    )
