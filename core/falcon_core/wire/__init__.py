"""Define the data that cross a process boundary: etcd keys and messages, the ring, the control file, launcher files.

All of it is versioned. A reader accepts the previous minor version of everything here; a change of meaning gets a new
version number.
"""
