"""An agent's part that keeps copies, in a process that can be killed: keeper.py ROOT UID RANK TLS.

Says its port in the file ROOT/UID/port. Each line of standard input is what the operator tells agents of each other.
"""

import sys
import time
from pathlib import Path

import msgspec

from falcon_core.wire.saves.peers import Peers
from tests.integration.agent.checkpoints.test_copying import Pod

if __name__ == "__main__":
    root, uid, rank, tls = sys.argv[1:]
    pod = Pod(Path(root), uid, int(rank), Path(tls))
    while not pod.report.port:
        time.sleep(0.01)
    said = Path(root) / uid / "port"
    said.with_suffix(".new").write_text(str(pod.report.port))
    said.with_suffix(".new").rename(said)
    for line in sys.stdin:
        pod.copying.take(msgspec.json.decode(line, type=Peers))
