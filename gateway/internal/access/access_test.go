package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// server stands in for the API server: it knows a few tokens, and may be away.
type server struct {
	mu    sync.Mutex
	asked int
	away  bool
	wait  chan struct{} // where it is not nil, no question is answered before it is closed
}

func (s *server) review(ctx context.Context, token, _ string) (Answer, error) {
	s.mu.Lock()
	s.asked++
	away, wait := s.away, s.wait
	s.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
	}
	switch {
	case away:
		return Answer{}, errors.New("connection refused")
	case strings.HasPrefix(token, "prometheus"):
		return Answer{User: "prometheus", Allowed: true}, nil
	case token == "tenant":
		return Answer{User: "tenant"}, nil
	}
	return Answer{}, nil
}

func (s *server) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// clocked has a clock that a test moves.
type clocked struct {
	*Access
	server *server
	mu     sync.Mutex
	time   time.Time
}

func guarded() *clocked {
	c := &clocked{server: &server{}, time: time.Unix(1_000, 0)}
	c.Access = New(c.server.review, "falcon-metrics-reader", "/metrics", slog.New(slog.NewTextHandler(io.Discard, nil)))
	c.now = func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.time
	}
	return c
}

func (c *clocked) pass(duration time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = c.time.Add(duration)
}

func (c *clocked) get(authorization string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	answer := httptest.NewRecorder()
	page := http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) { _, _ = answer.Write([]byte("the page\n")) })
	c.Guard(page).ServeHTTP(answer, request)
	return answer
}

func TestWhoGetsThePage(t *testing.T) {
	c := guarded()
	for authorization, wanted := range map[string]struct {
		status int
		text   string
	}{
		"":                   {401, "needs the header 'Authorization: Bearer <token>'"},
		"Basic cHJvbWV0aGV1": {401, "needs the header"},
		"Bearer ":            {401, "needs the header"},
		"Bearer stolen":      {401, "does not know this token"},
		"Bearer tenant":      {403, "tenant may not get /metrics: bind it to the ClusterRole falcon-metrics-reader"},
		"Bearer prometheus":  {200, "the page"},
		"bearer prometheus":  {200, "the page"},
	} {
		answer := c.get(authorization)
		if answer.Code != wanted.status || !strings.Contains(answer.Body.String(), wanted.text) {
			t.Errorf("%q got %d: %s", authorization, answer.Code, answer.Body)
		}
		if asked := answer.Header().Get("WWW-Authenticate"); (asked == "Bearer") != (answer.Code == 401) {
			t.Errorf("%q was asked for %q", authorization, asked)
		}
	}
}

func TestAnAnswerIsKeptForAWhile(t *testing.T) {
	for token, lasts := range map[string]time.Duration{"prometheus": goodFor, "tenant": refusedFor, "stolen": refusedFor} {
		c := guarded()
		c.get("Bearer " + token)
		c.pass(lasts - time.Second)
		c.get("Bearer " + token)
		if c.server.asked != 1 {
			t.Errorf("%s was checked %d times", token, c.server.asked)
		}
		c.pass(time.Second)
		if c.get("Bearer " + token); c.server.asked != 2 {
			t.Errorf("%s was checked %d times", token, c.server.asked)
		}
	}
}

func TestWhileTheAPIServerIsAwayAGoodAnswerCountsForAWhile(t *testing.T) {
	c := guarded()
	c.get("Bearer prometheus")
	c.server.set(true)
	c.pass(lentFor - time.Second)
	if answer := c.get("Bearer prometheus"); answer.Code != 200 {
		t.Errorf("a known token got %d: %s", answer.Code, answer.Body)
	}
	answer := c.get("Bearer prometheus-2")
	if answer.Code != 503 || answer.Header().Get("Retry-After") == "" || !strings.Contains(answer.Body.String(), "connection refused") {
		t.Errorf("an unknown token got %d: %s", answer.Code, answer.Body)
	}
	c.pass(time.Second)
	if answer := c.get("Bearer prometheus"); answer.Code != 503 {
		t.Errorf("after %s the token got %d", lentFor, answer.Code)
	}
	c.server.set(false)
	if answer := c.get("Bearer prometheus"); answer.Code != 200 {
		t.Errorf("when the API server is back the token got %d", answer.Code)
	}
}

func TestAServerThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	c := guarded()
	c.server.wait = make(chan struct{}) // for ever
	if answer := c.get("Bearer prometheus"); answer.Code != 503 {
		t.Errorf("got %d: %s", answer.Code, answer.Body)
	}
}

func TestFewUnknownTokensAreCheckedAtATimeAndAKnownOneStillIs(t *testing.T) {
	c := guarded()
	c.get("Bearer prometheus")
	c.pass(goodFor)
	c.server.wait = make(chan struct{})
	refused := make(chan int, 20)
	for i := range cap(refused) {
		go func() { refused <- c.get(fmt.Sprintf("Bearer %d", i)).Code }()
	}
	for range cap(refused) - mostStrangers {
		if code := <-refused; code != 503 {
			t.Errorf("one of many got %d", code)
		}
	}
	known := make(chan int)
	go func() { known <- c.get("Bearer prometheus").Code }()
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		c.server.mu.Lock()
		begun = c.server.asked == 1+mostStrangers+1
		c.server.mu.Unlock()
	}
	close(c.server.wait)
	if code := <-known; code != 200 {
		t.Errorf("the known token got %d", code)
	}
	for range mostStrangers {
		if code := <-refused; code != 401 {
			t.Errorf("a token that was checked got %d", code)
		}
	}
}

func TestAnswersTakeABoundedMemoryAndWrongTokensNoGoodOnesPlace(t *testing.T) {
	c := guarded()
	c.get("Bearer prometheus")
	for i := range 3 * mostRefused {
		c.get(fmt.Sprintf("Bearer %d", i))
	}
	for i := range mostGood - 1 {
		c.get(fmt.Sprintf("Bearer prometheus-%d", i))
	}
	if kept := len(c.answers.known); kept != mostGood+mostRefused || c.answers.good.Len() != mostGood {
		t.Errorf("%d answers are kept", kept)
	}
	asked := c.server.asked
	if c.get("Bearer prometheus"); c.server.asked != asked {
		t.Error("the first good answer was forgotten")
	}
	c.get("Bearer prometheus-too-many")
	if c.answers.good.Len() != mostGood {
		t.Errorf("%d good answers are kept", c.answers.good.Len())
	}
}
