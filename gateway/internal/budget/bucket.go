// Package budget says how much a connection and a job may send. It is pure: every function is given the time.
package budget

import "time"

// Bucket is a token bucket. The zero value is not usable; it is not safe for use by several goroutines at once.
type Bucket struct {
	rate   float64 // tokens a second
	burst  float64
	tokens float64 // below zero: a debt
	at     time.Time
}

// NewBucket returns a full bucket.
func NewBucket(rate, burst float64, now time.Time) *Bucket {
	return &Bucket{rate: rate, burst: burst, tokens: burst, at: now}
}

// Resize changes rate and burst. Debts stay; tokens beyond the new burst are lost.
func (b *Bucket) Resize(rate, burst float64, now time.Time) {
	b.refill(now)
	b.rate, b.burst = rate, burst
	b.tokens = min(b.tokens, burst)
}

// Take takes n tokens if there are as many, and says whether it did.
func (b *Bucket) Take(n float64, now time.Time) bool {
	b.refill(now)
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}

// Spend takes n tokens even where this makes a debt. What has to go out whole is so paid for afterwards.
func (b *Bucket) Spend(n float64, now time.Time) {
	b.refill(now)
	b.tokens -= n
}

// Debt returns how long it takes until the bucket owes nothing; zero if it owes nothing now.
func (b *Bucket) Debt(now time.Time) time.Duration {
	b.refill(now)
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens / b.rate * float64(time.Second))
}

// Left returns which share of the burst is left; below zero: a debt.
func (b *Bucket) Left(now time.Time) float64 {
	b.refill(now)
	return b.tokens / b.burst
}

// Full says whether nothing was taken for so long that a new bucket would be the same.
func (b *Bucket) Full(now time.Time) bool {
	b.refill(now)
	return b.tokens >= b.burst
}

func (b *Bucket) refill(now time.Time) {
	if passed := now.Sub(b.at).Seconds(); passed > 0 {
		b.tokens = min(b.burst, b.tokens+passed*b.rate)
		b.at = now
	}
}
