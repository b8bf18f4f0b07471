"""Define the times [s] that depend on each other across processes: launcher, agent, operator.

Each of them waits for something that another process does within a time of its own. A wait that is too short acts on a
process that was about to answer. So they are defined together, and a test checks their order, also against the
launcher's own in ``shim/src/launch``.
"""

from __future__ import annotations

# -- reports: agent → bus → operator

REPORT_SECONDS = 10.0  # an agent of a healthy pod reports this often, and at once when something changes
URGENT_SECONDS = 2.0  # what must be reported at once has arrived by then, also on a busy node
DETAIL_SECONDS = 1.0  # an agent reports this often while the detail of one of its ranks matters
PRINTED_SECONDS = 2.0  # an agent has read a line by then, where it need not sample
CLOCK_SECONDS = 1.0  # the clocks of two machines that differ by less are taken for equal
FRESH_SECONDS = 15.0  # an older report proves nothing of the present; one may be late
BLIND_SECONDS = 25.0  # without any report of a running pod: two reports, and a change of the bus's leader

# -- liveness: the agent's stream, weighed only while the operator hears etcd or every gateway

LIVENESS_TTL_SECONDS = 3  # an agent that is gone is known to be gone by then: its gateway waits for 2 s
HEARTBEAT_SECONDS = 1.0  # the leader writes one to etcd and sends one to each gateway this often
SILENCE_SECONDS = 3.0  # without an answer to a heartbeat nothing is heard: agents may only seem to be gone
# After its gateway is lost, an agent has reached another one by then: it notices a dead connection after 13 s, and a
# Service goes on naming the gateway of a dead node until Kubernetes has marked the node.
REJOIN_SECONDS = 60.0

# An agent that ended by itself is reported by its node's kubelet by then, which looks each second: the node lives.
KUBELET_SECONDS = 1.5  # after the agent is known to be silent, which takes 2 s
ALIVE_SECONDS = 10.0  # for so long such a report stands for the node's life; the agent is back by then

# -- the end of a generation: the operator's order, the launcher's signals, and what follows where no answer comes

LAUNCHER_STUCK_SECONDS = 30  # generation/supervisor.cc: a process that is still there so late cannot be killed
LEAVE_SECONDS = 15.0  # a pod that is to go may acknowledge the order first; then it is deleted in any case
FINISH_SECONDS = 20.0  # launchers of a job that is over or suspended end by themselves; then their pods are deleted
# Likewise where the agent is gone, too: it may come back and pass it on. A kubelet holds an agent back for up to 15 s.
SILENT_SECONDS = 20.0
# Likewise where the agent lives, beyond the pod's own grace: the launcher may take as long to say that it is stuck.
OBSTINATE_SECONDS = 45.0

# -- a checkpoint that is asked for before a planned restart: the ranks save it, and stand still until they are ended

SAVE_SECONDS = 60.0  # for the step, the copy of a large state in memory, and that copy's way to the folder

# -- a pause in which links are measured: ranks stand still until the operator's word, or until it stays away

PAUSE_UNENDED_SECONDS = 4.0  # after a pod's last result it lets its ranks go on by itself
PAUSE_MACHINE_SECONDS = 2.0  # a machine has computed by then, in half a second and the start of its threads
PAUSE_TURN_SECONDS = 3.0  # falcon_bench/links.py: a turn of its executor lasts so long at most

# -- a job that does not move: silence until it is an incident

# Where no awaited rank ran for an instant: stopped, or blocked for good. The launcher reports uninterruptible sleep
# after 30 s and looks for it each 5 s (process/counters.cc), so that by now it is known who waits for a device.
IDLE_SECONDS = 40.0
LULL_SECONDS = 120.0  # where they ran now and then, or wait for a device: a checkpoint is written so
RAISED_SECONDS = 5.0  # after an error that ends a program: Python's way out, with its workers, takes a second or two
ANSWERED_SECONDS = 3.0  # after a rank's deadline, its agent has taken its stack and reported it
PATIENCE_SECONDS = 600.0  # where they are at work, or nothing shows whom all wait for
