"""A command of PBS: sends its command line to the server and prints what it answers."""

import json
import os
import pwd
import socket
import sys

NO_SERVER = 255


def ask(directory, request):
    """Send a request to the server of a cluster's directory; OSError if it does not listen."""
    with socket.socket(socket.AF_UNIX) as connection:
        folder = os.open(directory, os.O_RDONLY)
        try:  # not by its own path, which may be longer than a socket's may be
            connection.connect(f"/proc/self/fd/{folder}/socket")
        finally:
            os.close(folder)
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    return json.loads(answer)


def main(name, directory):
    reads_stdin = name == "qsub" and not sys.stdin.isatty()
    request = {
        "command": name,
        "words": sys.argv[1:],
        "user": os.environ.get("FAKE_PBS_USER") or pwd.getpwuid(os.getuid()).pw_name,
        "directory": os.getcwd(),
        "environment": dict(os.environ) if name == "qsub" else {},
        "stdin": sys.stdin.read() if reads_stdin else "",
    }
    try:
        answer = ask(directory, request)
    except (OSError, ValueError):
        words = f"Connection refused\n{name}: cannot connect to server fake-pbs (errno=15010)\n"
        sys.stderr.write(words)
        sys.exit(NO_SERVER)
    sys.stdout.write(answer["stdout"])
    sys.stderr.write(answer["stderr"])
    sys.exit(answer["returncode"])
