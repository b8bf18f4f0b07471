"""A program that meets its peers at MASTER_PORT as PyTorch's store does: rank 0 listens, the others connect.

meeting.py FOLDER [BEFORE]     FOLDER/lines: rank, process and generation, before it meets anybody; FOLDER/met: after it
BEFORE: Python that runs in between
"""

import os
import socket
import sys
import time

rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])


def say(name: str) -> None:
    line = f"{os.environ['FALCON_GENERATION']} {rank} {os.getpid()}\n"
    os.write(os.open(f"{sys.argv[1]}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), line.encode())


say("lines")
exec("".join(sys.argv[2:3]))
if rank == 0:
    listener = socket.create_server(("", port))
    peers = [listener.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection((os.environ["MASTER_ADDR"], port))]
            break
        except ConnectionRefusedError:  # a cold rank 0 may listen later
            time.sleep(0.01)
say("met")
time.sleep(1000)
