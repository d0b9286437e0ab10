"""Models of Hugging Face transformers: `hf:NAME_OR_CONFIG`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fedhead.core.system.errors import BadInput, first_line
from fedhead.models.pretrained.pretrained import fix_batch_norm, import_library
from fedhead.models.registry import Shape
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split


def hf_model(name: str) -> Callable[..., SplitModel]:
    """Return a builder of a transformers classifier for texts or images.

    Args:
        name: Folder with a config.json and optional weights; path of a config.json; or a name on the
            hub, which transformers downloads or finds in its cache.

    Raises:
        BadInput: If transformers can't be imported, or the folder does not exist.
    """
    transformers = import_library("transformers", f"hf:{name}", "'fedhead[hf]'")
    path = Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or name.endswith(".json")
    if is_path and not path.exists():
        raise BadInput(f"model hf:{name}: there is no such folder or file; give a model's folder, or its config.json")
    where = str(path) if path.exists() else name

    def build(shape: Shape | Mapping[str, Shape], classes: int, pretrained: bool = True) -> SplitModel:
        """Build a transformers classifier; BatchNorm keeps the pretrained statistics."""
        images = not isinstance(shape, Mapping) and len(shape) == 3
        kind = "ImageClassification" if images else "SequenceClassification"
        auto = getattr(transformers, f"AutoModelFor{kind}")
        try:
            config = transformers.AutoConfig.from_pretrained(where, num_labels=classes)
            if pretrained and _has_weights(path):
                model = auto.from_pretrained(where, config=config, ignore_mismatched_sizes=True)
            else:
                model = auto.from_config(config)
        except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
            samples = "images" if images else "texts"
            raise BadInput(f"model hf:{name} can't be made for {samples} ({first_line(error)})") from error
        return split(fix_batch_norm(model))

    vars(build)["takes_names"] = True
    build.__module__ = __name__
    return build


def _has_weights(path: Path) -> bool:
    """Return whether weights exist, in the folder or, for a name, on the hub."""
    if not path.exists():
        return True
    return path.is_dir() and any(any(path.glob(kind)) for kind in ("*.safetensors", "pytorch_model*.bin"))
