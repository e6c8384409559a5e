package peers

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/background"
)

// testTimeout bounds the time to wait for events that are immediate on an idle machine.
const testTimeout = 30 * time.Second

var (
	rootPath = core.RootCluster.Path()
	insecure = &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
)

type world struct {
	root *clienttest.Server
	book *Book
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{root: clienttest.New(t, kinds.Scheme)}
	local, err := client.NewFactory(w.root.ClientConfig())
	require.NoError(t, err)
	shards := kinds.Shards.Informer(local.Cluster(rootPath), client.InformerOptions[*corev1alpha1.Shard]{})
	w.book = NewPeerBook(Config{Self: "self", Local: local, Shards: shards, Access: insecure})
	t.Cleanup(local.CloseIdleConnections)
	background.Run(t.Context(), t, shards.Run)
	background.Run(t.Context(), t, w.book.Run)
	return w
}

func (w *world) announce(t *testing.T, name, url string) {
	t.Helper()
	w.root.Put(t, kinds.Shards.GroupVersionResource, &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: "root"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: url},
	})
}

func (w *world) withdraw(t *testing.T, name string) {
	t.Helper()
	w.root.Delete(t, kinds.Shards.GroupVersionResource, "", "root", "", name)
}

func (w *world) known(t *testing.T, name, url string) *Peer {
	t.Helper()
	var found *Peer
	require.Eventually(t, func() bool {
		found = w.book.Named(name)
		return found == nil && url == "" || found != nil && found.URL == url
	}, testTimeout, time.Millisecond, "%s at %s", name, url)
	return found
}

type server struct {
	*httptest.Server
	open atomic.Int32
}

func newServer(t *testing.T, handler http.HandlerFunc) *server {
	t.Helper()
	s := &server{Server: httptest.NewUnstartedServer(handler)}
	s.EnableHTTP2 = true
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.open.Add(-1)
		default:
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *server) unused(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return s.open.Load() == 0 }, testTimeout, time.Millisecond, "connections are still open")
}

func (p *Peer) version(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/version", http.NoBody)
	if err != nil {
		return err
	}
	res, err := p.Clients.HTTPClient().Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

func TestBookFollowsTheShards(t *testing.T) {
	w := newWorld(t)
	here := func(http.ResponseWriter, *http.Request) {}
	one, two := newServer(t, here), newServer(t, here)
	events := make(chan string, 20)
	stop := w.book.Follow(t.Context(), func(ctx context.Context, p *Peer) {
		events <- p.Name + " at " + p.URL
		<-ctx.Done()
		events <- p.Name + ": " + context.Cause(ctx).Error()
	})
	expect := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool { return len(events) > 0 }, testTimeout, time.Millisecond, what)
		require.Equal(t, what, <-events)
	}
	require.Eventually(t, func() bool { _, complete := w.book.All(); return complete }, testTimeout, time.Millisecond)
	w.announce(t, "self", "https://self.test")
	w.announce(t, "there", one.URL+"/")
	expect("there at " + one.URL)
	first := w.known(t, "there", one.URL)
	require.NoError(t, first.Do(t.Context(), testTimeout, first.version))
	require.Equal(t, "self", w.book.Named("self").Name)
	require.NotEqual(t, "https://self.test", w.book.Named("self").URL, "the shard itself must have its own clients")
	all, _ := w.book.All()
	require.Len(t, all, 2)
	require.Equal(t, "self", all[0].Name)

	// Its address changes: there is one follower at a time.
	w.announce(t, "there", two.URL)
	expect("there: " + ErrMoved.Error())
	expect("there at " + two.URL)
	second := w.known(t, "there", two.URL)
	one.unused(t)
	require.NoError(t, first.Do(t.Context(), testTimeout, first.version), "a removed peer must remain usable")
	one.unused(t)
	require.NoError(t, second.Do(t.Context(), testTimeout, second.version))

	// Invalid addresses are ignored.
	for _, bad := range []string{"", "http://" + two.Listener.Addr().String(), "https://", "://"} {
		w.announce(t, "there", bad)
		w.announce(t, "new", bad)
		obj := &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: corev1alpha1.ShardSpec{BaseURL: bad}}
		require.Eventually(t, func() bool { return w.book.Unusable(obj) }, testTimeout, time.Millisecond, bad)
		require.Same(t, second, w.book.Named("there"))
		require.Nil(t, w.book.Named("new"))
	}

	// It is removed and registered again.
	w.withdraw(t, "there")
	expect("there: " + ErrRemoved.Error())
	w.known(t, "there", "")
	two.unused(t)
	w.announce(t, "there", two.URL)
	expect("there at " + two.URL)
	third := w.known(t, "there", two.URL)
	require.NotSame(t, second, third)
	require.NoError(t, third.Do(t.Context(), testTimeout, third.version))

	// A second follower is started for present shards; the first one ends.
	again := make(chan string, 1)
	stopAgain := w.book.Follow(t.Context(), func(ctx context.Context, p *Peer) { again <- p.Name; <-ctx.Done() })
	require.Equal(t, "there", <-again)
	stop()
	expect("there: " + context.Canceled.Error())
	require.Same(t, third, w.book.Named("there"))
	stopAgain()
	require.Empty(t, events)
}

// TestUnresponsiveShard: a shard that accepts connections and never responds delays one request, but no others, and leaks
// nothing.
func TestUnresponsiveShard(t *testing.T) {
	w := newWorld(t)
	hole, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hole.Close()
	fine := newServer(t, func(http.ResponseWriter, *http.Request) {})
	hanging := newServer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for name, url := range map[string]string{"hole": "https://" + hole.Addr().String(), "hanging": hanging.URL, "fine": fine.URL} {
		w.announce(t, name, url)
		w.known(t, name, url)
	}
	running := make(chan string, 3)
	stop := w.book.Follow(t.Context(), func(ctx context.Context, p *Peer) {
		informer := kinds.LogicalClusters.Informer(p.Clients.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{})
		running <- p.Name
		_ = informer.Run(ctx)
	})
	defer stop()
	for range 3 {
		<-running
	}
	for _, name := range []string{"hole", "hanging"} {
		p := w.book.Named(name)
		require.ErrorIs(t, p.Do(t.Context(), 50*time.Millisecond, p.version), ErrUnreachable, name)
		require.ErrorIs(t, p.Do(t.Context(), testTimeout, func(context.Context) error { return errors.New("requested again") }), ErrUnreachable)
	}
	p := w.book.Named("fine")
	require.NoError(t, p.Do(t.Context(), testTimeout, p.version))

	w.withdraw(t, "hole")
	w.withdraw(t, "hanging")
	w.known(t, "hole", "")
	w.known(t, "hanging", "")
	hanging.unused(t)
}
