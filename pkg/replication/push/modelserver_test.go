package push

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
)

// modelServer is a shard, or a cache server with the replicas of one, of which each request may fail:
// before it has arrived, or after. It is used within a bubble.
type modelServer struct {
	shard string // of a cache server

	mu                  sync.Mutex
	rand                *rand.Rand
	revision, compacted int64
	dataID              int
	objects             map[string][]byte
	history             []modelEvent
	watches             map[*modelWatch]struct{}
	// failing is how many of a hundred requests go wrong, and late whether some arrive that were lost.
	failing int
	late    bool
	// ill has requests for digests fail.
	ill   bool
	stray sync.WaitGroup
	// received counts the bytes of responses except watches, and lists the pages of shards.
	received, lists int
	// onCheckpoint is called for each checkpoint.
	onCheckpoint func(content map[string]any)
}

type modelEvent struct {
	revision int64
	kind     string
	key      string
	object   []byte
}

type modelWatch struct {
	prefix string
	out    *io.PipeWriter
	events chan []byte // exceeds the maximum observed number of 90 events
}

var errLost = errors.New("lost")

func newModelServer(seed uint64, shard string) *modelServer {
	return &modelServer{
		shard: shard, rand: rand.New(rand.NewPCG(seed, uint64(len(shard)))), revision: 10,
		objects: map[string][]byte{}, watches: map[*modelWatch]struct{}{},
	}
}

func (m *modelServer) factory(t testing.TB) *client.Factory {
	t.Helper()
	f, err := client.NewFactory(&rest.Config{Host: "http://model", Transport: m})
	require.NoError(t, err)
	return f
}

// locked calls f under the lock.
func (m *modelServer) locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// chance reports whether something of a chance of n in 100 happens.
func (m *modelServer) chance(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rand.IntN(100) < n
}

// RoundTrip implements http.RoundTripper.
func (m *modelServer) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
		_ = req.Body.Close()
	}
	m.mu.Lock()
	failing, late, takes := m.failing, m.late, m.rand.IntN(60)
	m.mu.Unlock()
	<-time.After(time.Duration(takes/2) * time.Millisecond)
	defer func() { <-time.After(time.Duration(takes/2) * time.Millisecond) }() // the response arrives later than events
	fails, lost := m.chance(failing), m.chance(50)
	if fails && lost {
		if late && req.Method != http.MethodGet {
			m.stray.Go(func() {
				<-time.After(time.Second)
				m.response(req, body)
			})
		}
		return nil, errLost
	}
	status, response := m.response(req, body)
	if fails {
		return nil, errLost
	}
	if watch, ok := response.(*modelWatch); ok {
		return m.stream(req, watch), nil
	}
	text, err := json.Marshal(response)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.received += len(text)
	return modelResponse(req, status, io.NopCloser(bytes.NewReader(text))), nil
}

func modelResponse(req *http.Request, status int, body io.ReadCloser) *http.Response {
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: status, Header: header, Body: body, Request: req}
}

// modelQuery is a parsed request.
type modelQuery struct {
	prefix, resource, cluster, name string
}

func (q modelQuery) key(name string) string { return q.prefix + q.cluster + "|" + name }

func (m *modelServer) response(req *http.Request, body []byte) (status int, response any) {
	refuse := func(err *apierrors.StatusError) (int, any) { return int(err.ErrStatus.Code), err.ErrStatus }
	path := strings.TrimPrefix(req.URL.Path, request.CachePrefix+"/shards/"+m.shard)
	if rest, ok := strings.CutPrefix(path, digest.Path); ok {
		return m.digests(rest)
	}
	parts := strings.Split(strings.Trim(path, "/"), "/") // clusters/<c>/apis/<g>/<v>/<resource>[/<name>]
	q := modelQuery{resource: parts[5] + "." + parts[3], cluster: parts[1]}
	q.prefix = q.resource + "/"
	if len(parts) > 6 {
		q.name = parts[6]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	gr := schema.ParseGroupResource(q.resource)
	switch query := req.URL.Query(); {
	case query.Get("sendInitialEvents") != "":
		return refuse(apierrors.NewInvalid(schema.GroupKind{}, "", nil))
	case query.Get("watch") != "":
		w, refused := m.watch(q, query.Get("resourceVersion"))
		if refused != nil {
			return refuse(refused)
		}
		return http.StatusOK, w
	case req.Method == http.MethodGet && q.name == "":
		return http.StatusOK, m.list(q, query.Get("limit"), query.Get("continue"))
	}
	if err := m.write(req.Method, &q, body); err != nil {
		return refuse(err)
	}
	text, found := m.objects[q.key(q.name)]
	switch {
	case req.Method == http.MethodDelete:
		return http.StatusOK, metav1.Status{Status: metav1.StatusSuccess}
	case !found:
		return refuse(apierrors.NewNotFound(gr, q.name))
	default:
		return http.StatusOK, json.RawMessage(text)
	}
}

// write executes a write like a cache server, under the lock.
func (m *modelServer) write(method string, q *modelQuery, body []byte) *apierrors.StatusError {
	gr := schema.ParseGroupResource(q.resource)
	conflict := func(have string) *apierrors.StatusError {
		return apierrors.NewConflict(gr, q.name, fmt.Errorf("the object has version %s", have))
	}
	switch method {
	case http.MethodPost, http.MethodPut:
		obj := decoded(body)
		q.name = obj.GetName()
		text, found := m.objects[q.key(q.name)]
		switch have := decoded(text); {
		case method == http.MethodPost && found:
			return apierrors.NewAlreadyExists(gr, q.name)
		case method == http.MethodPut && !found:
			return apierrors.NewNotFound(gr, q.name)
		case method == http.MethodPut && obj.GetResourceVersion() != have.GetResourceVersion(), obj.GetUID() != "" && found && obj.GetUID() != have.GetUID():
			return conflict(have.GetResourceVersion())
		}
		if m.onCheckpoint != nil && strings.HasPrefix(q.resource, "replicationcheckpoints") {
			m.onCheckpoint(obj.Object)
		}
		m.store(q.key(q.name), q.cluster, obj)
	case http.MethodDelete:
		text, found := m.objects[q.key(q.name)]
		if !found {
			return apierrors.NewNotFound(gr, q.name)
		}
		options := metav1.DeleteOptions{}
		if err := json.Unmarshal(body, &options); err == nil && options.Preconditions != nil {
			if have := decoded(text).GetResourceVersion(); *options.Preconditions.ResourceVersion != have {
				return conflict(have)
			}
		}
		m.remove(q.key(q.name))
	}
	return nil
}

func decoded(text []byte) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	_ = utiljson.Unmarshal(text, &obj.Object)
	return obj
}

func encoded(content map[string]any) []byte {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // it was decoded before
	}
	return text
}

// store writes an object, under the lock.
func (m *modelServer) store(key, cluster string, obj *unstructured.Unstructured) {
	m.revision++
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations["kcp.io/cluster"] = cluster
	if m.shard != "" {
		annotations[request.ShardAnnotation] = m.shard
	}
	if obj.GetUID() == "" {
		obj.SetUID(types.UID(cmp.Or(annotations[request.OriginalUIDAnnotation], fmt.Sprintf("uid-%d", m.revision))))
	}
	obj.SetAnnotations(annotations)
	obj.SetResourceVersion(strconv.FormatInt(m.revision, 10))
	text := encoded(obj.Object)
	kind := "MODIFIED"
	if m.objects[key] == nil {
		kind = "ADDED"
	}
	m.objects[key] = text
	m.record(modelEvent{m.revision, kind, key, text})
}

// remove deletes an object, under the lock.
func (m *modelServer) remove(key string) {
	m.revision++
	last := decoded(m.objects[key])
	last.SetResourceVersion(strconv.FormatInt(m.revision, 10))
	text := encoded(last.Object)
	delete(m.objects, key)
	m.record(modelEvent{m.revision, "DELETED", key, text})
}

func (m *modelServer) record(e modelEvent) {
	m.history = append(m.history, e)
	for w := range m.watches {
		w.send(e)
	}
}

// list returns a page, under the lock.
func (m *modelServer) list(q modelQuery, limit, from string) any {
	keys := slices.Sorted(maps.Keys(m.objects))
	items, meta := []json.RawMessage{}, map[string]any{"resourceVersion": strconv.FormatInt(m.revision, 10)}
	most, _ := strconv.Atoi(limit)
	if most != 1 && strings.HasPrefix(q.prefix, "shards.") {
		m.lists++
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, q.prefix) || key <= from {
			continue
		}
		if most > 0 && len(items) == most {
			left := slices.DeleteFunc(keys, func(other string) bool { return !strings.HasPrefix(other, q.prefix) || other < key })
			meta["remainingItemCount"] = len(left)
			if most > 1 {
				meta["continue"] = from
			}
			break
		}
		items, from = append(items, m.objects[key]), key
	}
	return map[string]any{"apiVersion": "core.kcp.io/v1alpha1", "kind": "ShardList", "metadata": meta, "items": items}
}

// digests returns the digests of the current replicas.
func (m *modelServer) digests(rest string) (int, any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ill {
		return http.StatusServiceUnavailable, metav1.Status{}
	}
	response := &digest.Response{DataID: strconv.Itoa(m.dataID + 1), Form: digest.Form, Resources: map[string]digest.Root{}}
	table := m.table()
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	switch {
	case parts[0] == "":
		response.Resources["shards.core.kcp.io"] = table.Root()
	case len(parts) == 1:
		for _, sum := range table.Sums() {
			response.Buckets = append(response.Buckets, digest.Number(sum))
		}
	default:
		bucket, _ := strconv.Atoi(parts[1])
		response.Keys = table.Keys(bucket)
	}
	return http.StatusOK, response
}

// table has the hashes of all replicas, under the lock.
func (m *modelServer) table() *digest.Table[struct{}] {
	table := &digest.Table[struct{}]{}
	for key, text := range m.objects {
		if key, ok := strings.CutPrefix(key, "shards.core.kcp.io/"); ok {
			hash, _ := replication.HashReplica(key, decoded(text).Object)
			table.Set(key, hash, struct{}{})
		}
	}
	return table
}

// watch begins a watch, under the lock.
func (m *modelServer) watch(q modelQuery, from string) (*modelWatch, *apierrors.StatusError) {
	at, _ := strconv.ParseInt(from, 10, 64)
	switch {
	case at < m.compacted:
		return nil, apierrors.NewResourceExpired("too old")
	case at > m.revision:
		e := apierrors.NewTimeoutError("Too large resource version", 1)
		e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return nil, e
	}
	w := &modelWatch{prefix: q.prefix, events: make(chan []byte, 1000)}
	m.watches[w] = struct{}{}
	for _, e := range m.history {
		if e.revision > at {
			w.send(e)
		}
	}
	bookmark := modelShard("")
	bookmark.SetResourceVersion(strconv.FormatInt(m.revision, 10))
	w.events <- encoded(map[string]any{"type": "BOOKMARK", "object": bookmark.Object})
	return w, nil
}

func (w *modelWatch) send(e modelEvent) {
	if strings.HasPrefix(e.key, w.prefix) {
		w.events <- encoded(map[string]any{"type": e.kind, "object": json.RawMessage(e.object)})
	}
}

func (m *modelServer) stream(req *http.Request, w *modelWatch) *http.Response {
	in, out := io.Pipe()
	context.AfterFunc(req.Context(), func() { _ = out.CloseWithError(req.Context().Err()) })
	m.mu.Lock()
	w.out = out
	if _, open := m.watches[w]; !open {
		_ = out.Close()
	}
	m.mu.Unlock()
	m.stray.Go(func() {
		for {
			select {
			case event := <-w.events:
				if _, err := out.Write(event); err != nil {
					return
				}
			case <-req.Context().Done():
				return
			}
		}
	})
	return modelResponse(req, http.StatusOK, in)
}

// silently changes objects without an event, as a bug or a broken connection may.
func (m *modelServer) silently(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	watches, history := m.watches, m.history
	m.watches = nil
	change()
	m.watches, m.history = watches, history
}

// breakWatches ends all watches, as a restart does; forget has them begin anew.
func (m *modelServer) breakWatches(forget bool) { m.locked(func() { m.broke(forget) }) }

func (m *modelServer) broke(forget bool) {
	for w := range m.watches {
		if w.out != nil {
			_ = w.out.Close()
		}
	}
	clear(m.watches)
	if forget {
		m.history, m.compacted = nil, m.revision
	}
}
