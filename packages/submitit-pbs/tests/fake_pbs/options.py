"""Command lines of PBS's commands."""

import getopt
import re
import shlex

QSUB = "a:A:c:C:e:fhIJ:j:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:XzZ"


class Usage(Exception):
    """A command line that the command does not take."""


class BadDirective(Exception):
    """A `#PBS` line that qsub does not take."""


class Submission:
    """Request of a qsub, by its command line first, by the script's #PBS lines else."""

    def __init__(self, words, stdin, read):
        """`read(path)` gives the text of a script."""
        own, operands = split(words, QSUB)
        self.options = {}
        self.resources = {}
        self.script = ""
        self.name = "STDIN"
        self.is_command = False
        if operands and words[len(words) - len(operands) - 1] == "--":
            self.script = "exec " + shlex.join(operands) + "\n"
            self.is_command = True
        elif operands:
            self.script = read(operands[0])
            self.name = operands[0].rpartition("/")[2]
        else:
            self.script = stdin
        self.arguments = shlex.join(words)
        self._take(own)
        for line in directives(self.script):
            self._take(options_of(line))
        self.name = self.options.get("N", self.name)

    def _take(self, pairs):
        for letter, value in pairs:
            if letter == "l":
                for part in re.split(r",(?=\w+=)", value):
                    name, _, text = part.partition("=")
                    self.resources.setdefault(name, text)
            elif letter == "W":
                name, _, text = value.partition("=")
                self.options.setdefault(f"W {name}", text)
            else:
                self.options.setdefault(letter, value)

    @property
    def nodes(self):
        chunks = self.resources.get("select", "1").split("+")
        return sum(int(re.match(r"\d+", c)[0]) if c[:1].isdigit() else 1 for c in chunks)

    @property
    def walltime_s(self):
        text = self.resources.get("walltime")
        return None if text is None else seconds(text)

    @property
    def indices(self):
        """The indices of an array (`-J 0-9:2%4`) and how many may run at once."""
        text = self.options.get("J")
        if text is None:
            return None, None
        match = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?", text)
        if not match or int(match[1]) >= int(match[2]):
            raise Usage(f"illegal -J value {text}")
        return range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)), int(match[4] or 0)


def options_of(line):
    """The options of a `#PBS` line; BadDirective if there is more on it."""
    try:
        pairs, operands = split(shlex.split(line, comments=True), QSUB)
    except ValueError:
        raise BadDirective("unmatched  ") from None
    if operands:
        raise BadDirective(f"directive error: {line} ")
    return pairs


def split(words, letters):
    """Pairs of option letter and value, and the operands."""
    try:
        pairs, operands = getopt.getopt(words, letters)
    except getopt.GetoptError as error:
        raise Usage(str(error)) from None
    return [(name[1:], value) for name, value in pairs], operands


def directives(script):
    """The #PBS lines of a script, up to its first command."""
    for number, line in enumerate(script.splitlines()):
        if line.startswith("#PBS"):
            yield line[4:].strip()
        elif line.strip() and not line.startswith("#") and not (number == 0 and ":" in line[:1]):
            return


def seconds(text):
    """`HH:MM:SS`, `MM:SS` or seconds; Usage else."""
    if not re.fullmatch(r"\d+(:\d+){0,2}", text):
        raise Usage("Illegal attribute or resource value for walltime")
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total


def clock(total):
    """HH:MM:SS."""
    total = int(total)
    return f"{total // 3600:02d}:{total // 60 % 60:02d}:{total % 60:02d}"
