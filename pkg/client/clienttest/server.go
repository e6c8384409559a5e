// Package clienttest is an API server in memory for tests of clients: real HTTP/2 over
// TLS, many logical clusters, resourceVersions, shard selectors, pages, watch lists,
// bookmarks, compaction and broken connections, writes with preconditions, but no
// validation, no patches, and nothing of what servers set in objects but UIDs and versions.
package clienttest

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/request"
)

// Server is an API server with objects of any kind. Its methods may be called
// at any time from any goroutine.
type Server struct {
	*httptest.Server

	scheme *runtime.Scheme

	mu        sync.Mutex
	cond      *sync.Cond
	revision  int64
	compacted int64
	objects   map[string]*unstructured.Unstructured
	history   []change
	// epoch changes when all streams are to end.
	epoch int
	// bookmarks counts those that all streams were sent.
	bookmarks   int
	noWatchList bool
	lists       int
	watches     int
	failing     int
}

type change struct {
	revision int64
	kind     string
	resource schema.GroupVersionResource
	object   *unstructured.Unstructured
}

// New starts a server that ends with the test. scheme tells the kinds of the
// objects that Put takes.
func New(t testing.TB, scheme *runtime.Scheme) *Server {
	t.Helper()
	s := InProcess(scheme)
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.Break()
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// InProcess returns a server without a listener: clients of its ClientConfig call it within the process, so
// that it can be used in a bubble of testing/synctest.
func InProcess(scheme *runtime.Scheme) *Server {
	s := &Server{scheme: scheme, revision: 100, objects: map[string]*unstructured.Unstructured{}}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// ClientConfig returns a client configuration for the bare host.
func (s *Server) ClientConfig() *rest.Config {
	if s.Server == nil {
		return inProcessConfig(s)
	}
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// Put creates or replaces an object in its logical cluster (and on its shard),
// which its annotations name, and sets resourceVersion, and uid unless it is a new object that
// comes with one.
func (s *Server) Put(t testing.TB, gvr schema.GroupVersionResource, obj runtime.Object) string {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	require.NoError(t, err)
	u := &unstructured.Unstructured{Object: content}
	if u.GetKind() == "" {
		gvks, _, err := s.scheme.ObjectKinds(obj)
		require.NoError(t, err)
		u.SetGroupVersionKind(gvks[0])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	key := objectKey(gvr, u)
	kind := "MODIFIED"
	if old, ok := s.objects[key]; ok {
		u.SetUID(old.GetUID())
	} else {
		kind = "ADDED"
		if u.GetUID() == "" {
			u.SetUID(types.UID(fmt.Sprintf("uid-%d", s.revision)))
		}
	}
	u.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	s.objects[key] = u
	s.record(change{revision: s.revision, kind: kind, resource: gvr, object: u})
	return u.GetResourceVersion()
}

// Delete removes an object.
func (s *Server) Delete(t testing.TB, gvr schema.GroupVersionResource, shard string, cluster logicalcluster.Name, namespace, name string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("%s|%s|%s|%s|%s", gvr, shard, cluster, namespace, name)
	old, ok := s.objects[key]
	require.True(t, ok, "no object %s to delete", key)
	delete(s.objects, key)
	s.revision++
	final := old.DeepCopy()
	final.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	s.record(change{revision: s.revision, kind: "DELETED", resource: gvr, object: final})
}

// Break ends all watches, as a restart would.
func (s *Server) Break() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.cond.Broadcast()
}

// Compact forgets the history, and ends all watches.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history, s.compacted = nil, s.revision
	s.epoch++
	s.cond.Broadcast()
}

// Rollback sets the resourceVersion back, as restoring a backup does, and ends
// all watches.
func (s *Server) Rollback(to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision, s.history, s.compacted = to, nil, to
	s.epoch++
	s.cond.Broadcast()
}

// Bookmark sends a bookmark to all watches.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bookmarks++
	s.cond.Broadcast()
}

// DisableWatchList makes the server refuse initial events on watches.
func (s *Server) DisableWatchList() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noWatchList = true
}

// Fail makes all requests fail with an HTTP status, until it is 0 again.
func (s *Server) Fail(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = status
}

// Requests returns how many lists (each page counts) and watches there were.
func (s *Server) Requests() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.watches
}

func (s *Server) record(c change) {
	s.history = append(s.history, c)
	s.cond.Broadcast()
}

// snapshot returns the matching objects in the order of their keys.
func (s *Server) snapshot(q query) []*unstructured.Unstructured {
	var keys []string
	for key, obj := range s.objects {
		if q.matches(obj) && q.hasResource(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	objs := make([]*unstructured.Unstructured, 0, len(keys))
	for _, key := range keys {
		objs = append(objs, s.objects[key])
	}
	return objs
}

func objectKey(gvr schema.GroupVersionResource, u *unstructured.Unstructured) string {
	return fmt.Sprintf("%s|%s|%s|%s|%s", gvr, u.GetAnnotations()[request.ShardAnnotation], logicalcluster.From(u), u.GetNamespace(), u.GetName())
}
