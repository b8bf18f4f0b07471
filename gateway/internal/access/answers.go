package access

import (
	"container/list"
	"crypto/sha256"
	"time"
)

const (
	goodFor     = time.Minute      // a token that is withdrawn is served for as long
	refusedFor  = 10 * time.Second // a right that is given works after as long
	lentFor     = 5 * time.Minute  // a good answer counts for as long while the API server gives no other
	mostGood    = 64
	mostRefused = 256
)

// Answer is the API server's answer about a token.
type Answer struct {
	User    string // "" where the token is not valid
	Allowed bool   // whether this user may read the page
}

type key [sha256.Size]byte

type kept struct {
	Answer
	at    time.Time
	place *list.Element // in the order of its kind
}

// answers keeps answers by the hash of their token, so that memory holds no token. Good and refused ones are kept apart:
// however many wrong tokens arrive, they take no good one's place. It is not safe for use by several goroutines at once.
type answers struct {
	known         map[key]kept
	good, refused *list.List // of keys, the oldest answer first
}

func newAnswers() *answers {
	return &answers{known: map[key]kept{}, good: list.New(), refused: list.New()}
}

// fresh returns an answer that needs no further question.
func (a *answers) fresh(token key, now time.Time) (Answer, bool) {
	found, ok := a.known[token]
	lasts := refusedFor
	if found.Allowed {
		lasts = goodFor
	}
	return found.Answer, ok && now.Sub(found.at) < lasts
}

// lent returns the good answer that counts while the API server gives no other.
func (a *answers) lent(token key, now time.Time) (Answer, bool) {
	found, ok := a.known[token]
	return found.Answer, ok && found.Allowed && now.Sub(found.at) < lentFor
}

// keep keeps an answer in the place of an earlier one. Where there is no room, the oldest of its kind goes.
func (a *answers) keep(token key, answer Answer, now time.Time) {
	a.forget(token)
	order, most := a.refused, mostRefused
	if answer.Allowed {
		order, most = a.good, mostGood
	}
	if order.Len() >= most {
		a.forget(order.Front().Value.(key))
	}
	a.known[token] = kept{Answer: answer, at: now, place: order.PushBack(token)}
}

func (a *answers) forget(token key) {
	earlier, ok := a.known[token]
	if !ok {
		return
	}
	order := a.refused
	if earlier.Allowed {
		order = a.good
	}
	order.Remove(earlier.place)
	delete(a.known, token)
}
