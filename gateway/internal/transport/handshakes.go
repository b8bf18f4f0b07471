package transport

import (
	"net"
	"net/netip"
)

// handshakes are the connections whose TLS handshake has not ended, at most so many. A newer one takes the place of an
// older one: an honest handshake ends within milliseconds, and so is over before its place is taken. Refusing the newer
// one would let a client that came first keep all places. It is not safe for use by several goroutines at once.
type handshakes struct {
	most    int
	open    int
	sources map[netip.Addr][]net.Conn // each the oldest first
}

func newHandshakes(most int) *handshakes {
	return &handshakes{most: most, sources: map[netip.Addr][]net.Conn{}}
}

// begin gives a connection a place. It returns the connection whose place that was, which is to be closed; nil: a place
// was free. Of the sources the one with most connections loses its oldest.
func (h *handshakes) begin(raw net.Conn) net.Conn {
	var replaced net.Conn
	if h.open >= h.most {
		replaced = h.sources[h.largest()][0]
		h.end(replaced)
	}
	source := sourceOf(raw)
	h.sources[source] = append(h.sources[source], raw)
	h.open++
	return replaced
}

// end frees the place of a connection, if it has one.
func (h *handshakes) end(raw net.Conn) {
	source := sourceOf(raw)
	connections := h.sources[source]
	for i, known := range connections {
		if known != raw {
			continue
		}
		h.sources[source] = append(connections[:i:i], connections[i+1:]...)
		if len(connections) == 1 {
			delete(h.sources, source)
		}
		h.open--
		return
	}
}

func (h *handshakes) largest() (largest netip.Addr) {
	for source, connections := range h.sources {
		if len(connections) > len(h.sources[largest]) {
			largest = source
		}
	}
	return largest
}

// sourceOf returns the address from which a connection comes; the zero address where that is not known.
func sourceOf(raw net.Conn) netip.Addr {
	if tcp, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
