"""Pass a request and the standard streams to the warm process; end as its fork does."""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect(sys.argv[1])
    link = json.loads(sys.argv[2])["link"]
    passed = [] if link is None else [link]
    socket.send_fds(connection, [sys.argv[2].encode()], [0, 1, 2, *passed])
    for one in passed:  # who is at the other end of it must see that the fork has ended
        os.close(one)
    answer = connection.recv(16)
assert answer, "the warm process is gone"
code = int(answer)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
sys.exit(code)
