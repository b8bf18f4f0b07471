// Package access admits to a page the clients whose bearer token the API server knows, and which may `get` the page's
// path (docs/adr/0188-metrics-ask-for-a-token-that-the-api-server-knows.md).
package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	reviewWithin  = 3 * time.Second // both questions about one token; a scrape ends after 10 s by default
	mostStrangers = 4               // tokens without an earlier good answer that are checked at the same time
	retrySeconds  = 5
)

var errManyStrangers = errors.New("too many other tokens are being checked")

// Review asks the API server whose token it is, and whether this user may get the path.
type Review func(ctx context.Context, token, path string) (Answer, error)

// Access is who may read one page.
type Access struct {
	review Review
	role   string // the ClusterRole that lets its subjects read the page
	path   string
	log    *slog.Logger
	now    func() time.Time

	mu        sync.Mutex
	answers   *answers
	underWay  map[key]*check
	strangers int    // of those under way, the tokens without an earlier good answer
	trouble   string // why the last check failed
}

// check is a question about a token, which all clients that send it wait for.
type check struct {
	done   chan struct{}
	answer Answer
	err    error
}

// New returns who may read the page at `path`.
func New(review Review, role, path string, log *slog.Logger) *Access {
	return &Access{
		review: review, role: role, path: path, log: log, now: time.Now,
		answers: newAnswers(), underWay: map[key]*check{},
	}
}

// Guard serves a page to those who may read it.
func (a *Access) Guard(page http.Handler) http.Handler {
	return http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		status, text := a.refusal(request.Header.Get("Authorization"))
		switch status {
		case 0:
			page.ServeHTTP(answer, request)
			return
		case http.StatusUnauthorized:
			answer.Header().Set("WWW-Authenticate", "Bearer")
		case http.StatusServiceUnavailable:
			answer.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		}
		http.Error(answer, text, status)
	})
}

// refusal returns the answer to a client that may not read the page; 0 for one that may.
func (a *Access) refusal(authorization string) (status int, text string) {
	remedy := "send the token of a service account that is bound to the ClusterRole " + a.role
	token := bearer(authorization)
	if token == "" {
		return http.StatusUnauthorized, fmt.Sprintf("%s needs the header 'Authorization: Bearer <token>': %s", a.path, remedy)
	}
	answer, err := a.answer(token)
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, fmt.Sprintf("tokens cannot be checked now, try again in %d s: %v", retrySeconds, err)
	case answer.User == "":
		return http.StatusUnauthorized, "the API server does not know this token, or it has expired: " + remedy
	case !answer.Allowed:
		return http.StatusForbidden, fmt.Sprintf("%s may not get %s: bind it to the ClusterRole %s", answer.User, a.path, a.role)
	}
	return 0, ""
}

func (a *Access) answer(token string) (Answer, error) {
	hash := key(sha256.Sum256([]byte(token)))
	a.mu.Lock()
	now := a.now()
	if fresh, ok := a.answers.fresh(hash, now); ok {
		a.mu.Unlock()
		return fresh, nil
	}
	lent, known := a.answers.lent(hash, now)
	waited := a.underWay[hash]
	if waited == nil {
		if !known && a.strangers >= mostStrangers {
			a.mu.Unlock()
			return Answer{}, errManyStrangers
		}
		waited = a.begin(token, hash, known)
	}
	a.mu.Unlock()
	// The check goes on when a client gives up: others may wait for the same one, and it ends in time.
	<-waited.done
	if waited.err != nil && known {
		return lent, nil
	}
	return waited.answer, waited.err
}

// begin begins to check a token. The caller holds the lock.
func (a *Access) begin(token string, hash key, known bool) *check {
	begun := &check{done: make(chan struct{})}
	a.underWay[hash] = begun
	if !known {
		a.strangers++
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), reviewWithin)
		defer cancel()
		begun.answer, begun.err = a.review(ctx, token, a.path)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.underWay, hash)
		if !known {
			a.strangers--
		}
		a.note(begun.err)
		if begun.err == nil {
			a.answers.keep(hash, begun.answer, a.now())
		}
		close(begun.done)
	}()
	return begun
}

// note logs a trouble once, however many clients meet it.
func (a *Access) note(err error) {
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	if trouble != "" && trouble != a.trouble {
		a.log.Warn("tokens of metrics cannot be checked", "error", trouble)
	}
	a.trouble = trouble
}

// bearer returns the token in a header; "" where there is none.
func bearer(authorization string) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(authorization), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
