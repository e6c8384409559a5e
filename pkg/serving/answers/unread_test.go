package answers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/test/bubble"
)

// stuck is a response of which nothing is read before it is given up.
type stuck struct {
	*httptest.ResponseRecorder

	once    sync.Once
	givenUp chan struct{}
}

var errGivenUp = errors.New("given up")

func (s *stuck) Write([]byte) (int, error) {
	<-s.givenUp
	return 0, errGivenUp
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		s.once.Do(func() { close(s.givenUp) })
	}
	return nil
}

// TestUnread holds that what waits for clients to read is bounded of each user and in all, that
// everybody has some room in any case, and one answer of any size.
func TestUnread(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		const mine = 40 << 10
		var answering sync.WaitGroup
		last := false
		paused := withPause(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := w.Write(make([]byte, r.ContentLength))
			if !errors.Is(err, errGivenUp) {
				t.Errorf("it was read: %v", err)
			}
		}), newUnread(ledger.Bounds{Total: 4 * mine, User: 2 * mine, Own: mine / 2}))
		handler := WithGuard(WithStreams(paused, func(*http.Request, *apirequest.RequestInfo) bool { return last }))
		var pauses atomic.Int64
		answer := func(who string, bytes int64) (givenUp bool) {
			ctx := apirequest.WithUser(context.WithoutCancel(t.Context()), &user.DefaultInfo{Name: who, Groups: map[string][]string{"root": {user.SystemPrivilegedGroup}}[who]})
			ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{})
			ctx = request.WithPause(ctx, func() func() {
				pauses.Add(1)
				return func() { pauses.Add(-1) }
			})
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
			r.ContentLength = bytes
			w := &stuck{ResponseRecorder: httptest.NewRecorder(), givenUp: make(chan struct{})}
			answering.Go(func() { handler.ServeHTTP(w, r) })
			time.Sleep(2 * pauseAfter) //nolint:forbidigo // in a bubble
			bubble.Wait()
			select {
			case <-w.givenUp:
				return true
			default:
				return false
			}
		}
		require.False(t, answer("jane", mine))
		require.False(t, answer("jane", mine))
		require.True(t, answer("jane", mine), "more than one user's")
		require.True(t, answer("jane", mine/4), "however little")
		require.False(t, answer("joe", 100*mine), "one of any size, which is as much as one may have")
		require.True(t, answer("jim", mine), "there is no room left")
		require.False(t, answer("jim", mine/2), "but what everybody has")
		require.False(t, answer("root", 100*mine))
		last = true
		require.False(t, answer("jane", mine), "what lasts has bounds of its own")
		last = false
		require.EqualValues(t, 6, pauses.Load())
		answering.Wait() // the guard gives up what is left
		require.Zero(t, pauses.Load())
		require.False(t, answer("jane", mine), "there is room again")
		answering.Wait()
	})
}

// TestForwarded holds that of answers of others so much counts as comes ahead of clients, watches as well, and that
// who reads slowly is not taken for who does not.
func TestForwarded(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		const ahead = 8 << 10
		last := false
		writes := make([]byte, unsent+1)
		var answering sync.WaitGroup
		forwards := withForwarded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(writes)
			if err != nil && !errors.Is(err, errGivenUp) {
				t.Errorf("it is given up otherwise: %v", err)
			}
		}), newUnread(ledger.Bounds{Total: 8 * ahead, User: 2 * ahead, Own: ahead}), ahead)
		handler := WithGuard(WithStreams(forwards, func(*http.Request, *apirequest.RequestInfo) bool { return last }))
		answer := func(who string, w http.ResponseWriter) {
			ctx := apirequest.WithUser(context.WithoutCancel(t.Context()), &user.DefaultInfo{Name: who, Groups: map[string][]string{"root": {user.SystemPrivilegedGroup}}[who]})
			r := httptest.NewRequestWithContext(apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{}), http.MethodGet, "/", http.NoBody)
			answering.Go(func() { handler.ServeHTTP(w, r) })
		}
		givenUp := func(who string) bool {
			w := &stuck{ResponseRecorder: httptest.NewRecorder(), givenUp: make(chan struct{})}
			answer(who, w)
			time.Sleep(2 * forwardedAfter) //nolint:forbidigo // in a bubble
			bubble.Wait()
			select {
			case <-w.givenUp:
				return true
			default:
				return false
			}
		}
		for range 10 {
			answer("jane", blocking{httptest.NewRecorder(), forwardedAfter / 2})
		}
		answering.Wait()
		require.False(t, givenUp("jane"))
		last = true
		require.False(t, givenUp("jane"))
		require.True(t, givenUp("jane"), "watches count")
		last = false
		require.True(t, givenUp("jane"), "and all else")
		require.False(t, givenUp("joe"))
		for range 10 {
			require.False(t, givenUp("root"))
		}
		answering.Wait() // the guard gives up what is left
		require.False(t, givenUp("jane"), "there is room again")
		answering.Wait()
	})
}

// TestWhole holds that few answers at a time are compressed that are encoded as a whole.
func TestWhole(t *testing.T) {
	t.Parallel()
	inside, goOn := make(chan bool), make(chan struct{})
	last := false
	paused := WithPause(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		inside <- r.Header.Get("Accept-Encoding") != ""
		<-goOn
	}))
	handler := WithGuard(WithStreams(paused, func(*http.Request, *apirequest.RequestInfo) bool { return last }))
	var answering sync.WaitGroup
	ask := func(who, accept, query, agent string) bool {
		ctx := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: who})
		r := httptest.NewRequestWithContext(apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true}), http.MethodGet, "/?"+query, http.NoBody)
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", "gzip")
		r.Header.Set("User-Agent", agent)
		answering.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
		return <-inside
	}
	packs := func(who, accept string) bool { return ask(who, accept, "", "kubectl") }
	const table, plain = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/vnd.kubernetes.protobuf, application/json,*/*"
	require.True(t, packs("jane", table))
	require.True(t, packs("jane", "application/yaml"))
	require.False(t, packs("jane", table))
	require.False(t, packs("jane", "application/json; as =Table;v=v1;g=meta.k8s.io"))
	require.False(t, packs("jane", "application/json;pretty=1"))
	require.False(t, packs("jane", "application/cbor"))
	require.False(t, ask("jane", plain, "pretty=true", "kubectl"))
	require.False(t, ask("jane", "", "", "curl/8.5.0"))
	require.True(t, packs("jane", ""), "it is encoded object by object")
	require.True(t, packs("jane", plain), "so is it")
	require.True(t, packs("joe", table))
	last = true
	require.True(t, packs("jane", table), "watches are encoded event by event")
	last = false
	close(goOn)
	answering.Wait()
	goOn = make(chan struct{})
	require.True(t, packs("jane", table), "others have ended")
	close(goOn)
	answering.Wait()
}
