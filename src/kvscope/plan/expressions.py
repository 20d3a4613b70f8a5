"""Values computed from other keys: `${engine.max_model_len}`, `${2 * ceil(seed / 3)}`."""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.plan.wording import format_value

Config = dict[str, Any]

EXPRESSION = re.compile(r"\$\{([^{}]*)\}")
LONGEST = 200  # letters of an expression
LONGEST_TEXT = 1000  # letters of what a text with expressions becomes
DEEPEST = 50  # keys that refer to each other in a chain
LARGEST = 1e12
DIGITS = 12  # of a number that is not whole: 0.1 * 30 is 3
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "min": min,
    "max": max,
}
OF_ONE = ("ceil", "floor")
GRAMMAR = f"keys, numbers, + - * / ( ) and {', '.join(FUNCTIONS)}"


def resolve(config: Config, origin: Callable[[str], str]) -> Config:
    """The configuration with each `${expression}` replaced by its value.

    An expression consists of keys, numbers, `+ - * / ( )`, `ceil`, `floor`, `min` and `max`. It
    cannot depend on the machine, so an experiment means the same everywhere. `origin` maps a dotted
    key to the place of its value. BadInput names key, expression and reason.
    """
    texts = {key: text for key, text in _texts(config) if "${" in text}
    return _Resolution(config, texts, origin).of(config) if texts else config


class _Resolution:
    """The values of one configuration, each computed when it is needed."""

    def __init__(self, config: Config, texts: dict[str, str], origin: Callable[[str], str]):
        self.config, self.texts, self.origin = config, texts, origin
        self.found: Config = {}
        self.begun: list[str] = []  # keys whose values are being computed

    def of(self, config: Config, prefix: str = "") -> Config:
        """A part of the configuration, with the values of its expressions."""
        return {
            name: self.of(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else self.value(prefix + name, value)
            for name, value in config.items()
        }

    def value(self, key: str, value: Any) -> Any:
        """A key's value, with its expressions evaluated."""
        if key not in self.texts or key in self.found:
            return self.found.get(key, value)
        if key in self.begun:
            raise ValueError(f"refers back to {key}")
        if len(self.begun) == DEEPEST:
            raise ValueError(f"ends a chain of more than {DEEPEST} keys")
        self.begun.append(key)
        try:
            self.found[key] = self._text(value)
            return self.found[key]
        except (ValueError, ArithmeticError) as error:
            reason = "divides by 0" if isinstance(error, ZeroDivisionError) else error
            raise BadInput(f"{key} is {value!r:.250} ({self.origin(key)}) but {reason}") from None
        finally:
            self.begun.pop()

    def _text(self, text: str) -> Any:
        if whole := EXPRESSION.fullmatch(text):
            return self._expression(whole[1])
        filled = EXPRESSION.sub(lambda match: str(self._expression(match[1])), text)
        if "${" in filled or len(filled) > LONGEST_TEXT:
            raise ValueError(f"must be made of ${{…}} and come to at most {LONGEST_TEXT} letters")
        return filled

    def _expression(self, text: str) -> Any:
        try:
            if len(text) > LONGEST:
                raise SyntaxError
            node = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ValueError(f"must be made of {GRAMMAR}") from None
        if isinstance(node, ast.Name | ast.Attribute):
            return self._key(node)
        number = self._number(node)
        return int(number) if number == int(number) else number

    def _number(self, node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                number = value
            case ast.Name() | ast.Attribute():
                number = self._key(node)
                if not isinstance(number, int | float) or isinstance(number, bool):
                    raise ValueError(
                        f"{ast.unparse(node)} is {format_value(number)}, which is no number"
                    )
            case ast.BinOp(op=op) if type(op) in OPERATORS:
                number = OPERATORS[type(op)](self._number(node.left), self._number(node.right))
            case ast.UnaryOp(op=ast.USub()):
                number = -self._number(node.operand)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if _takes(name, args):
                number = FUNCTIONS[name](*map(self._number, args))
            case _:
                raise ValueError(f"must be made of {GRAMMAR}")
        if not abs(number) <= LARGEST:
            raise ValueError(f"comes to more than {LARGEST:g}")
        return number if isinstance(number, int) else float(f"{number:.{DIGITS}g}")

    def _key(self, node: ast.expr) -> Any:
        """The value of the dotted key that `node` spells."""
        key, value = ast.unparse(node), self.config
        for name in key.split("."):
            if not isinstance(value, dict) or name not in value:
                raise ValueError(f"{key} is not a key of this experiment")
            value = value[name]
        if isinstance(value, dict):
            raise ValueError(f"{key} is a group of keys, not a value")
        return self.value(key, value)


def _takes(function: str, arguments: list[ast.expr]) -> bool:
    """Whether `function` exists and takes this number of arguments."""
    count = len(arguments)
    return function in FUNCTIONS and (count == 1 if function in OF_ONE else count > 1)


def _texts(config: Config, prefix: str = "") -> Iterator[tuple[str, str]]:
    """All texts in nested mappings, each with its dotted key."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _texts(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            yield prefix + name, value
