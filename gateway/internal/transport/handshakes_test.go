package transport

import (
	"net"
	"net/netip"
	"testing"
)

// from is a connection of one source address.
type from struct {
	net.Conn
	source string
}

func (f *from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.source), 1))
}

func TestTheSourceWithMostHandshakesLosesItsOldest(t *testing.T) {
	begun := newHandshakes(3)
	honest := &from{source: "10.0.0.1"}
	first, second := &from{source: "10.0.0.2"}, &from{source: "10.0.0.2"}
	for _, raw := range []net.Conn{honest, first, second} {
		if begun.begin(raw) != nil {
			t.Fatal("a place was free")
		}
	}
	if replaced := begun.begin(&from{source: "10.0.0.3"}); replaced != first {
		t.Fatalf("%v lost its place", replaced)
	}
	begun.end(honest)
	begun.end(honest)
	begun.end(first)
	if begun.open != 2 {
		t.Fatalf("%d are open", begun.open)
	}
	if begun.begin(&from{source: "10.0.0.1"}) != nil {
		t.Fatal("a place was free")
	}
}
