"""YAML in and out: one reader and one writer, fast, with errors of one sentence."""

import re
from pathlib import Path
from typing import Any

import yaml

from kvscope.errors import BadInput


class _Loader(yaml.CSafeLoader):
    """The safe loader; a key given twice is refused instead of the first being lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key '{key.value}' is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.CSafeDumper):
    """The safe dumper; no anchors, so that equal values always give equal bytes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.1 reads 1e-3 as text; people, Hydra and YAML 1.2 mean a number.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def load(path: Path) -> Any:
    """Read a YAML file; BadInput names file, line and reason if it is absent or malformed."""
    try:
        return yaml.load(path.read_bytes(), Loader=_Loader)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.MarkedYAMLError as error:
        line = f"{path}:{error.problem_mark.line + 1}" if error.problem_mark else str(path)
        raise BadInput(f"{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None


def load_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping with text keys."""
    value = load(path)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadInput(f"{path}: must hold 'key: value' lines at its top level")
    return value


def dump(value: Any) -> str:
    """Write plain values as YAML, keys in the order given."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text
