"""Sentences of the errors that vLLM and its libraries raise of a model or of arguments."""

import ast
import linecache
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from kvscope.base.reading import short_repr

LONGEST = 500  # characters of a reason: vLLM lists all models and methods that it knows
LONGEST_LIST = 100  # characters between brackets
READ = ("vllm", "transformers", "huggingface_hub")  # packages whose errors say what is wrong
IN_WORDS = (ValueError, NotImplementedError, RuntimeError, OSError, ImportError, AssertionError)

# Advice that no user of a plan should follow: it changes the environment, or needs a network.
ADVICE = re.compile(
    r"pip install|upgrade|https?://|trust_remote_code|VLLM_[A-Z]|LOGGING_LEVEL|internet|"
    r"Please report|raise an issue|open an issue|Try increasing|token=|hf auth|stack trace|above",
    re.IGNORECASE,
)
NO_BACKEND = re.compile(
    r"No valid attention backend found for (?P<device>.+?) with AttentionSelectorConfig"
    r"\((?P<asked>.*?)\)\. Reasons: \{(?P<why>.*)\}",
    re.DOTALL,
)
UNKNOWN = re.compile(r"(Model )?(architectures \[[^\]]*\] are not supported)( for now)?\.?")
MISSING = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


def reason(error: BaseException) -> str:
    """An error as sentences: of pydantic's complaints the first, without advice and long lists."""
    if isinstance(error, ValidationError):
        return _of_validation(error)
    text = (str(error.args[0]) if _is_said_key(error) else str(error)).strip()
    if refused := NO_BACKEND.search(text):
        return _no_backend(refused)
    if unknown := UNKNOWN.match(text):
        return f"{unknown[2]} by this release of vLLM; another may have them, or they are misspelt"
    if text and (_is_worded(error) or not _frame(error)):
        return _sentences(text)
    return _of_code(error)


def _is_said_key(error: BaseException) -> bool:
    """True for a KeyError with a sentence, which Python quotes as if it was a key."""
    return isinstance(error, KeyError) and len(error.args) == 1 and " " in str(error.args[0])


def _of_validation(error: ValidationError) -> str:
    """The first of pydantic's complaints: key, value and what was expected."""
    first = error.errors(include_url=False)[0]
    raised = first.get("ctx", {}).get("error")
    said = reason(raised) if isinstance(raised, Exception) else first["msg"]
    # Names of a class or of a branch of a union are no keys.
    keys = [str(key) for key in first["loc"] if str(key).replace("_", "").isalnum()]
    if not keys:
        return said
    return f"{'.'.join(keys)} is {short_repr(first['input'])}: {said}"


def _is_worded(error: BaseException) -> bool:
    """True if an error was raised on purpose, by a statement that words it."""
    frame = _frames(error)[-1:]
    if not frame:
        return isinstance(error, IN_WORDS)
    statement = _statement(frame[0])
    if isinstance(error, AssertionError | ImportError):
        return bool(str(error))
    return statement.startswith("raise ") or not _is_read(frame[0])


def _of_code(error: BaseException) -> str:
    """An error that no one has worded: the value that is missing, and the code that needs it."""
    frame = _frame(error)
    if frame is None:
        return f"{type(error).__name__}: {_sentences(str(error)) or 'it says no more'}"
    place = f"{_path(frame)}, line {frame.lineno}"
    statement = _statement(frame)
    if isinstance(error, AssertionError):
        return f"vLLM requires `{statement.removeprefix('assert ')}` ({place})"
    if isinstance(error, AttributeError) and (missing := MISSING.search(str(error))):
        owner, name = missing.groups()
        if owner.endswith("Config"):
            return f"its config.json has no {name}, which vLLM reads ({place})"
    said = f"{type(error).__name__}: {_sentences(str(error))}".removesuffix(": ").rstrip(".")
    code = f" in `{statement}`" if len(statement) <= LONGEST_LIST else ""
    return (
        f"a value of its config.json or of the arguments is missing or cannot be used{code} "
        f"({place}; {said})"
    )


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [*traceback.extract_tb(error.__traceback__)]


def _frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost call in vLLM's code; without one, in a package that reads configurations."""
    frames = [frame for frame in reversed(_frames(error)) if _is_read(frame)]
    return next((f for f in frames if _path(f).startswith("vllm/")), next(iter(frames), None))


def _is_read(frame: traceback.FrameSummary) -> bool:
    return _path(frame).partition("/")[0] in READ


def _path(frame: traceback.FrameSummary) -> str:
    """A source file by its package."""
    _, _, path = frame.filename.rpartition("/site-packages/")
    return path or Path(frame.filename).name


def _statement(frame: traceback.FrameSummary) -> str:
    """The first line of the statement that a frame is in, in one line."""
    lines = linecache.getlines(frame.filename)
    line = frame.lineno or 0
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return (frame.line or "").strip()
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    inner = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)
    return ast.unparse(inner).splitlines()[0] if inner else (frame.line or "").strip()


def _no_backend(refused: re.Match[str]) -> str:
    """vLLM's list of why each attention backend refuses a layer, turned round."""
    backends = re.findall(r"([A-Z0-9_]+): \[(.*?)\](?=, [A-Z0-9_]+: \[|$)", refused["why"])
    by_reason: dict[str, list[str]] = {}
    for name, reasons in backends:
        for said in re.split(r", (?![^(]*\))", reasons):
            by_reason.setdefault(said, []).append(name)
    whys = "; ".join(f"{said} ({', '.join(names)})" for said, names in by_reason.items())
    head = re.search(r"head_size=\d+", refused["asked"])
    dtype = re.search(r"kv_cache_dtype=[^,]+", refused["asked"])
    of = ", ".join(match[0] for match in (head, dtype) if match)
    return f"no attention backend of vLLM takes its layers ({of}) on {refused['device']}: {whys}"


def _sentences(text: str) -> str:
    """Sentences of a text in one line, as many as fit, without advice; always the first."""
    sentences = [
        sentence for sentence in _split(_first_paragraph(text)) if not ADVICE.search(sentence)
    ]
    said = ""
    for sentence in sentences or [*_split(_first_paragraph(text))][:1]:
        shorter = _without_lists(sentence)
        if said and (shorter != sentence or len(said) + len(shorter) > LONGEST):
            break
        said = f"{said} {shorter}".strip()
    return said


def _first_paragraph(text: str) -> str:
    """The first line, with those that it goes on in: after a colon, or within a sentence."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    whole = lines[0] if lines else ""
    for line in lines[1:]:
        if whole.endswith((".", "!", "?")):
            break
        whole += " " + line
    return whole


def _split(text: str) -> Iterator[str]:
    """The sentences of a text."""
    yield from filter(None, re.split(r"(?<=[.!?])(?:\s+(?=[A-Z`'\"-])|(?=Please ))", text))


def _without_lists(sentence: str) -> str:
    """A sentence whose long lists end after their first entries."""

    def shortened(match: re.Match[str]) -> str:
        inside = match[2]
        if len(inside) <= LONGEST_LIST:
            return match[0]
        entries = inside.split(", ")
        return f"{match[1]}{', '.join(entries[:3])}, and {len(entries) - 3} more{match[3]}"

    return re.sub(r"([\[({])([^\[\](){}]*)([\])}])", shortened, sentence)
