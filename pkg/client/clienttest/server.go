// Package clienttest is an in-memory API server for tests of clients. It supports HTTP/2 over TLS, logical clusters,
// resourceVersions, shard selectors, pages, watch lists, bookmarks, compaction, broken connections, and writes with
// preconditions. It supports neither validation nor patches, and sets only the UID and resourceVersion of objects.
package clienttest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
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

// Server is an API server with objects of any kind. It is safe for concurrent use.
type Server struct {
	*httptest.Server

	scheme *runtime.Scheme

	mu                  sync.Mutex
	cond                *sync.Cond
	revision, compacted int64
	objects             map[string]*unstructured.Unstructured
	history             []change
	// epoch is incremented to end all streams.
	epoch int
	// bookmarks counts the bookmarks sent to all streams.
	bookmarks               int
	noWatchList             bool
	lists, watches, failing int
}

type change struct {
	revision int64
	kind     string
	resource schema.GroupVersionResource
	object   *unstructured.Unstructured
}

// New starts a server that stops at the end of the test. scheme contains the kinds of the objects passed to Put.
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

// InProcess returns a server without a listener, which clients of its ClientConfig call within the process. It can be
// used in bubbles of testing/synctest.
func InProcess(scheme *runtime.Scheme) *Server {
	s := &Server{scheme: scheme, revision: 100, objects: map[string]*unstructured.Unstructured{}}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// ClientConfig returns a client configuration for the bare host.
func (s *Server) ClientConfig() *rest.Config {
	if s.Server == nil {
		return &rest.Config{Host: "http://in-process", Transport: inProcess{s}}
	}
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// Put creates or replaces an object in the logical cluster (and shard) in its annotations. It sets resourceVersion
// and, unless a new object has one, the UID.
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
	s.put(objectKey(gvr, u), gvr, u)
	return u.GetResourceVersion()
}

// Delete removes an object.
func (s *Server) Delete(t testing.TB, gvr schema.GroupVersionResource, shard string, cluster logicalcluster.Name, namespace, name string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("%s|%s|%s|%s|%s", gvr, shard, cluster, namespace, name)
	require.Contains(t, s.objects, key, "no object to delete")
	s.remove(key, gvr)
}

// Break ends all watches, like a restart.
func (s *Server) Break() { s.update(func() { s.epoch++ }) }

// Compact drops the history, and ends all watches.
func (s *Server) Compact() {
	s.update(func() {
		s.history, s.compacted = nil, s.revision
		s.epoch++
	})
}

// Rollback resets the resourceVersion, like the restore of a backup, and ends all watches.
func (s *Server) Rollback(to int64) {
	s.update(func() {
		s.revision, s.history, s.compacted = to, nil, to
		s.epoch++
	})
}

// Bookmark sends a bookmark to all watches.
func (s *Server) Bookmark() { s.update(func() { s.bookmarks++ }) }

// DisableWatchList makes the server refuse initial events on watches.
func (s *Server) DisableWatchList() { s.update(func() { s.noWatchList = true }) }

// Fail makes all requests fail with an HTTP status, until it is 0 again.
func (s *Server) Fail(status int) { s.update(func() { s.failing = status }) }

// Requests returns the numbers of lists (counting pages) and watches.
func (s *Server) Requests() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.watches
}

// update changes the server with the lock held, and wakes all watches.
func (s *Server) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.cond.Broadcast()
}

// put creates or replaces an object, with the lock held.
func (s *Server) put(key string, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) {
	kind := "MODIFIED"
	if old, ok := s.objects[key]; ok {
		obj.SetUID(old.GetUID())
	} else {
		kind = "ADDED"
		obj.SetUID(cmp.Or(obj.GetUID(), types.UID(fmt.Sprintf("uid-%d", s.revision+1))))
	}
	s.objects[key] = obj
	s.record(kind, gvr, obj)
}

// remove deletes an object, with the lock held, and returns its final state.
func (s *Server) remove(key string, gvr schema.GroupVersionResource) *unstructured.Unstructured {
	final := s.objects[key].DeepCopy()
	delete(s.objects, key)
	s.record("DELETED", gvr, final)
	return final
}

// record sets the next resourceVersion of an object, and sends its change to all watches.
func (s *Server) record(kind string, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) {
	s.revision++
	obj.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	s.history = append(s.history, change{s.revision, kind, gvr, obj})
	s.cond.Broadcast()
}

func (s *Server) snapshot(q query) []*unstructured.Unstructured {
	var objs []*unstructured.Unstructured
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if obj := s.objects[key]; strings.HasPrefix(key, q.resource.String()+"|") && q.matches(obj) {
			objs = append(objs, obj)
		}
	}
	return objs
}

func objectKey(gvr schema.GroupVersionResource, u *unstructured.Unstructured) string {
	return fmt.Sprintf("%s|%s|%s|%s|%s", gvr, u.GetAnnotations()[request.ShardAnnotation], logicalcluster.From(u), u.GetNamespace(), u.GetName())
}

// ForExample calls f with a testing.TB for an example, and runs the cleanups afterwards.
func ForExample(f func(t testing.TB)) {
	e := &example{}
	defer func() {
		for _, cleanUp := range slices.Backward(e.cleanups) {
			cleanUp()
		}
	}()
	f(e)
}

// example is the testing.TB of an example. It implements the methods that servers need.
type example struct {
	testing.TB

	cleanups []func()
}

func (*example) Helper()            {}
func (e *example) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func (*example) Context() context.Context { return context.Background() } //nolint:forbidigo // nothing else ends an example

func (*example) Errorf(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
func (*example) FailNow()                          { panic("the example failed") }

// inProcess is an http.RoundTripper that has a handler serve requests.
type inProcess struct{ handler http.Handler }

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.Clone(ctx)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &response{header: http.Header{}, started: make(chan struct{}), cancel: cancel}
	w.changed.L = &w.mu
	go func() {
		t.handler.ServeHTTP(w, r)
		w.end(io.EOF)
	}()
	context.AfterFunc(ctx, func() { w.end(ctx.Err()) })
	select {
	case <-w.started:
		return &http.Response{
			StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.header, Body: w, Request: r, ContentLength: -1,
		}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// response is an http.ResponseWriter, and the body that its client reads.
type response struct {
	header  http.Header
	status  int
	once    sync.Once
	started chan struct{}
	cancel  context.CancelFunc

	mu      sync.Mutex
	changed sync.Cond
	written bytes.Buffer
	ended   error
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	w.once.Do(func() {
		w.status = status
		close(w.started)
	})
}

// Write implements http.ResponseWriter. It does not wait for the client.
func (w *response) Write(data []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended != nil {
		return 0, w.ended
	}
	w.changed.Broadcast()
	return w.written.Write(data)
}

func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

func (w *response) end(why error) {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = cmp.Or(w.ended, why)
	w.changed.Broadcast()
}

func (w *response) Read(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.written.Len() == 0 {
		if w.ended != nil {
			return 0, w.ended
		}
		w.changed.Wait()
	}
	return w.written.Read(data)
}

// Close implements io.Closer: it ends the request.
func (w *response) Close() error {
	w.cancel()
	return nil
}
