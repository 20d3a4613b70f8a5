"""Reading and writing YAML, with errors of one sentence.

The events of a document are checked before it is loaded: with aliases a few lines can expand to
more values than memory holds, and deep nesting overflows the stack of the C loader.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kvscope.base.errors import BadInput
from kvscope.base.reading import read_bytes

# Far above any real configuration: 10,000 experiments with ten values each stay below them.
MAX_BYTES = 8 * 2**20
MAX_VALUES = 200_000
MAX_DEPTH = 50
MAX_KEY = 200
MAX_DIGITS = 400  # of a number; the largest float has 309

MERGE, TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"


NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
KEYED = "levels"  # of a study: names by value, which may be a number


class _Loader(yaml.CSafeLoader):
    """The safe loader, restricted to values that a configuration can have."""

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """A date is loaded as text, as Hydra does."""
        return str(node.value)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """A number of bounded length: arithmetic on huge numbers takes unbounded time."""
        if len(node.value) > MAX_DIGITS:
            raise _fault(f"a number of more than {MAX_DIGITS} digits", node)
        is_int = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)


class _Dumper(yaml.CSafeDumper):
    """The safe dumper without anchors, so that equal values give equal bytes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _type in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_type}", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_text)
# YAML 1.1 reads 1e-3 as text; Hydra and YAML 1.2 read it as a number.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def load(path: Path) -> Any:
    """Read a YAML file of plain values, keys being text.

    BadInput names file, line and reason if it is absent, malformed, or beyond what a
    configuration may hold.
    """
    try:
        content = read_bytes(path, MAX_BYTES)
        _check(content)
        return yaml.load(content, Loader=_Loader)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.MarkedYAMLError as error:
        line = f"{path}:{error.problem_mark.line + 1}" if error.problem_mark else str(path)
        raise BadInput(f"{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None


def load_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping."""
    value = load(path)
    if not isinstance(value, dict):
        raise BadInput(f"{path}: must hold 'key: value' lines at its top level")
    return value


def dump(value: Any, inline: bool = False) -> str:
    """Write plain values as YAML, keys in the order given; `inline`: lists of numbers in lines."""
    style = None if inline else False
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=style
    )
    return text


@dataclass
class _Open:
    """A list or mapping whose end event has not been read yet."""

    anchor: str | None
    is_mapping: bool
    values_before: int  # in the document
    items: int = 0  # keys and values in it so far
    levels: int = 0  # of nesting inside it so far
    keys: set[str] = field(default_factory=set)


class _Walk:
    """A check of a document's events that raises YAMLError at a value that is refused."""

    def __init__(self, loader: _Loader) -> None:
        self.loader = loader
        self.values = 0  # so far, aliases written out
        self.opened: list[_Open] = []
        self.section = ""  # the last key of the outermost mapping
        self.anchors: dict[str, tuple[int, int]] = {}  # values and levels of what an alias repeats

    def step(self, event: yaml.Event | None) -> None:
        """Check the next event; YAMLError if the document is refused."""
        if isinstance(event, yaml.CollectionEndEvent):
            ended = self.opened.pop()
            self._anchored(ended.anchor, self.values - ended.values_before, ended.levels + 1)
            self._holds(ended.levels + 1, event)
            return
        if not isinstance(event, yaml.NodeEvent):
            return  # where the document begins and ends
        if self.opened and self.opened[-1].is_mapping and self.opened[-1].items % 2 == 0:
            self._check_key(event, self.opened[-1].keys)
        if self.opened:
            self.opened[-1].items += 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise _fault(f"alias '*{event.anchor}' must follow the value it repeats", event)
            values, levels = self.anchors[event.anchor]
            self.values += values
            self._holds(levels, event)
            return
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            raise _fault(f"tag {event.tag!r} must be left out", event)
        if isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            self.anchors.pop(event.anchor or "", None)  # inside it, an alias would repeat itself
            self.opened.append(_Open(event.anchor, is_mapping, self.values))
        else:
            self._anchored(event.anchor, 1, 0)
        self.values += 1
        self._holds(0, event)

    def _anchored(self, anchor: str | None, values: int, levels: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = (values, levels)

    def _holds(self, levels: int, event: yaml.Event) -> None:
        """Record a value with this many nested levels in the innermost open list or mapping."""
        if self.opened:
            self.opened[-1].levels = max(self.opened[-1].levels, levels)
        if len(self.opened) + levels > MAX_DEPTH:
            raise _fault(f"nested more than {MAX_DEPTH} levels deep", event)
        if self.values > MAX_VALUES:
            raise _fault(f"more than {MAX_VALUES:,} values, aliases written out", event)

    @property
    def _names_values(self) -> bool:
        """Whether the open mapping's keys are values of a key: two levels below KEYED."""
        return self.section == KEYED and len(self.opened) == 3

    def _check_key(self, event: yaml.Event, keys: set[str]) -> None:
        """Refuse a key that is not text, and a duplicate key, which the loader would overwrite."""
        if not isinstance(event, yaml.ScalarEvent):
            raise _fault("a key must be text", event)
        key: str = event.value
        if len(key) > MAX_KEY or not key.isprintable():
            raise _fault(f"a key must be a line of at most {MAX_KEY} printable characters", event)
        tag = self.loader.resolve(yaml.ScalarNode, key, event.implicit)  # type: ignore[no-untyped-call]
        if len(self.opened) == 1:
            self.section = key
        if tag not in (TEXT, MERGE) and not (self._names_values and tag in NUMBERS):
            raise _fault(f"key '{key}' must be text; put it in quotes", event)
        if key in keys:
            raise _fault(f"key '{key}' is given twice", event)
        keys.add(key)


def _check(content: bytes) -> None:
    """Raise YAMLError for a document that is refused."""
    loader = _Loader(content)
    try:
        walk = _Walk(loader)
        while loader.check_event():
            walk.step(loader.get_event())
    finally:
        loader.dispose()


def _fault(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
