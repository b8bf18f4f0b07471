// Holds a standby that runs its program where it would meet the other ranks (docs/adr/0075). A rank that comes there
// before rank 0 listens is connected as soon as rank 0 does (docs/adr/0083).
//
// FALCON_HOLD names it to itself and to what it starts: "<process> <socket> <port> <the socket's inode>". The socket
// leads to falcon-launch, and is open until the standby becomes a rank.
#pragma once

namespace falcon {

// Ends this process where it is a standby that is no rank yet, or was started by one. `what` it is about to do that
// only a rank may do, for falcon-launch to say.
void refuse_in_standby(const char* what);

}  // namespace falcon
