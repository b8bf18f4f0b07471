package budget

import (
	"net/netip"
	"time"
)

// manyAddresses is the number of known addresses from which on those that have been quiet are forgotten.
const manyAddresses = 10_000

// Addresses gives each source address a bucket of its own. It is not safe for use by several goroutines at once.
type Addresses struct {
	rate, burst float64
	buckets     map[netip.Addr]*Bucket
}

// NewAddresses returns buckets of the same rate (tokens a second) and burst for all addresses.
func NewAddresses(rate, burst float64) *Addresses {
	return &Addresses{rate: rate, burst: burst, buckets: map[netip.Addr]*Bucket{}}
}

// Take takes a token of an address, if there is one, and says whether it did.
func (a *Addresses) Take(address netip.Addr, now time.Time) bool {
	known := a.buckets[address]
	if known == nil {
		if len(a.buckets) >= manyAddresses {
			a.forgetQuiet(now)
		}
		known = NewBucket(a.rate, a.burst, now)
		a.buckets[address] = known
	}
	return known.Take(1, now)
}

func (a *Addresses) forgetQuiet(now time.Time) {
	for address, bucket := range a.buckets {
		if bucket.Full(now) {
			delete(a.buckets, address)
		}
	}
}
