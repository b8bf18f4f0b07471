"""What crosses a process boundary, versioned: etcd keys and messages, the ring, the control file, the launcher's files.

A reader accepts the previous minor version of everything here; a change of meaning gets a new version number.
"""
