package listwatch

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// Two selectors that cover the ring of hashes of UIDs.
const (
	lowerHalf = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
	upperHalf = "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"
)

// lists is the minimum number of objects of each endpoint.
const lists = 8

// endpoint serves lists and watches of one collection.
type endpoint struct {
	name string
	// config reaches the server.
	config *rest.Config
	path   string
	// one is set if objects can be created at path.
	one bool
	// filtered is set if the server filters the objects of the collection.
	filtered bool
	// same is set if the collection is that of the previous endpoint.
	same bool
	// metadata is set if only metadata is served.
	metadata bool
	// create and remove create and delete an object in the collection.
	create, remove func(t *testing.T, name string)
	// created returns a request for an object with more metadata.
	created func(t *testing.T, more string) kit.Request
}

func (e endpoint) with(query ...string) string {
	values := url.Values{}
	for i := 0; i < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	return e.path + "?" + values.Encode()
}

// accept returns the media type of lists.
func (e endpoint) accept() string {
	if e.metadata {
		return asMetadata
	}
	return "application/json"
}

// call returns a request for a list or a watch.
func (e endpoint) call(query ...string) kit.Request {
	accept := e.accept()
	if i := slices.Index(query, "watch"); e.metadata && i >= 0 && query[i+1] == "true" {
		accept = asOneMetadata
	}
	return kit.Request{Path: e.with(query...), Header: http.Header{"Accept": {accept}}}
}

// anyList contains the common fields of lists.
type anyList struct {
	Kind     string
	Metadata struct {
		ResourceVersion    string
		Continue           string
		RemainingItemCount *int64
		ShardInfo          *metav1.ShardInfo
	}
	Items []metav1.PartialObjectMetadata
	Rows  []metav1.TableRow
}

func (l anyList) names() []string {
	names := make([]string, 0, len(l.Items))
	for i := range l.Items {
		o := &l.Items[i]
		names = append(names, o.Annotations["kcp.io/cluster"]+"|"+o.Namespace+"/"+o.Name)
	}
	return names
}

func (e endpoint) list(t *testing.T, accept string, query ...string) anyList {
	t.Helper()
	if accept == "" {
		accept = e.accept()
	}
	body := kit.RequireCode(t, e.config, kit.Request{Path: e.with(query...), Header: http.Header{"Accept": {accept}}}, http.StatusOK)
	var list anyList
	require.NoError(t, json.Unmarshal(body, &list), "%s", body)
	return list
}

// event is a watch event of any kind of object.
type event struct {
	Type   string
	Object struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta
		metav1.Status
	}
}

// String returns the type of the event and the name of the object.
func (e event) String() string { return e.Type + " " + e.Object.Metadata.Name }

// UnmarshalJSON distinguishes a Status from objects, because their metadata differ.
func (e *event) UnmarshalJSON(data []byte) error {
	var raw struct {
		Type   string
		Object json.RawMessage
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	e.Type = raw.Type
	if raw.Type == "ERROR" {
		return json.Unmarshal(raw.Object, &e.Object.Status)
	}
	var object struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta
	}
	err := json.Unmarshal(raw.Object, &object)
	e.Object.TypeMeta, e.Object.Metadata = object.TypeMeta, object.Metadata
	return err
}

// stream is an open watch.
type stream struct {
	t      *testing.T
	events chan event
}

// watch opens a watch that ends with the test.
func (e endpoint) watch(t *testing.T, query ...string) *stream {
	t.Helper()
	if e.metadata {
		return e.watchAs(t, asOneMetadata, query...)
	}
	return e.watchAs(t, "application/json", query...)
}

// watchAs is watch with a media type.
func (e endpoint) watchAs(t *testing.T, accept string, query ...string) *stream {
	t.Helper()
	transport, err := rest.TransportFor(e.config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.config.Host+e.with(append([]string{"watch", "true"}, query...)...), http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Accept", accept)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("the watch returned %d: %s", response.StatusCode, body)
	}
	s := &stream{t: t, events: make(chan event)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.events)
		decoder := json.NewDecoder(response.Body)
		for {
			var next event
			if decoder.Decode(&next) != nil {
				return
			}
			select {
			case s.events <- next:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = response.Body.Close()
		<-done
	})
	return s
}

func (s *stream) next() event {
	s.t.Helper()
	select {
	case e, ok := <-s.events:
		require.True(s.t, ok, "the watch ended")
		return e
	case <-time.After(kit.Timeout):
		s.t.Fatalf("no event within %s", kit.Timeout)
		return event{}
	}
}

// nextOf returns the next event of either stream.
func nextOf(t *testing.T, a, b *stream) event {
	t.Helper()
	var e event
	var ok bool
	select {
	case e, ok = <-a.events:
	case e, ok = <-b.events:
	case <-time.After(kit.Timeout):
	}
	require.True(t, ok, "no event within %s", kit.Timeout)
	return e
}

// until returns the events up to and including the first for which last is true.
func (s *stream) until(last func(event) bool) []event {
	s.t.Helper()
	var all []event
	for {
		e := s.next()
		all = append(all, e)
		if last(e) {
			return all
		}
	}
}

func isInitialEnd(e event) bool {
	return e.Type == "BOOKMARK" && e.Object.Metadata.Annotations["k8s.io/initial-events-end"] == "true"
}

func createObject(t *testing.T, config *rest.Config, path, body string) {
	t.Helper()
	kit.RequireCode(t, config, kit.JSONRequest(http.MethodPost, path, body), http.StatusCreated)
}

// eachEndpoint runs a test on every endpoint.
func eachEndpoint(t *testing.T, all []endpoint, test func(t *testing.T, at endpoint)) {
	t.Helper()
	for _, at := range all {
		t.Run(strings.ReplaceAll(at.name, ",", ""), func(t *testing.T) { test(t, at) })
	}
}

// TestListWatch checks the rules of lists and watches on every kind of endpoint.
func TestListWatch(t *testing.T) {
	t.Parallel()
	// A private cluster, because the test counts all objects of a shard.
	e := kit.Start(t, harness.Options{})
	all := endpoints(t, e)
	t.Run("sharding", func(t *testing.T) { testSharding(t, e, all) })
	t.Run("resource versions", func(t *testing.T) { testResourceVersions(t, all) })
	t.Run("pages", func(t *testing.T) { testPages(t, all) })
	t.Run("watches", func(t *testing.T) { testWatches(t, all) })
	t.Run("new resource", func(t *testing.T) { testNewResource(t, e) })
	t.Run("clients", func(t *testing.T) { testClients(t, e, all) })
	t.Run("deletion", func(t *testing.T) { testShardedDeletion(t, all) })
}
