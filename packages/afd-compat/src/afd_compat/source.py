"""Source text by module name, found without importing in an environment, a folder or a wheel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zipfile


#: Bytes of one module; vLLM's own are below one percent of it.
LARGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Tree:
    """Source text below the folder or wheel `base`, or of what is installed where that is None."""

    base: Path | zipfile.Path | None = None

    def read(self, module: str) -> str | None:
        """The text of `module` ("vllm.config.vllm"), or None where there is no such module."""
        *parents, last = module.split(".")
        bases = [self.base] if self.base is not None else _bases(module.partition(".")[0])
        for base in bases:
            for relative in ([*parents, last, "__init__.py"], [*parents, f"{last}.py"]):
                file = base.joinpath(*relative)
                if file.is_file():
                    return _text(file)
        return None

    def vllm_version(self) -> str | None:
        """The `__version__` that `vllm/_version.py` states, or None where it states none."""
        stated = re.search(r"^__version__\b[^'\"\n]*['\"]([^'\"\n]+)['\"]", self.read("vllm._version") or "", re.M)
        return stated.group(1) if stated else None


def _text(file: Path | zipfile.Path) -> str:
    """Raises ValueError for what is no text of a module, whatever it was damaged or made for."""
    try:
        size = file.stat().st_size if isinstance(file, Path) else file.root.getinfo(file.at).file_size
        if size > LARGEST:
            raise ValueError(f"{size} bytes are no module")
        return file.read_text(encoding="utf-8")
    except Exception as error:  # a damaged archive fails in as many ways as there are to pack it
        raise ValueError(
            f"The text of a module was expected in {file}, but it cannot be read ({error}); get a sound copy."
        ) from error


def open_tree(where: Path) -> Tree:
    """The tree in a wheel file, in an unpacked wheel or in a package folder itself.

    Raises ValueError where there is no vLLM in it.
    """
    if where.suffix == ".whl" and where.is_file():
        import zipfile

        if not zipfile.is_zipfile(where):
            raise ValueError(f"A vLLM wheel was expected, but {where} is no zip archive; pass a wheel or a folder.")
        tree = Tree(zipfile.Path(where))
    else:
        tree = Tree(where.parent if (where / "_version.py").is_file() else where)
    if tree.read("vllm") is None:
        raise ValueError(f"A vLLM wheel or a folder that holds vllm/ was expected, but {where} is neither; pass one.")
    return tree


def _bases(package: str) -> list[Path]:
    """The folders that hold the top-level `package`; `find_spec` of a top-level name runs no code of it."""
    try:
        spec = find_spec(package)
    except ValueError:  # loaded by hand, without a spec
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(location).parent for location in spec.submodule_search_locations]
    return [Path(spec.origin).parent] if spec.origin and spec.has_location else []
