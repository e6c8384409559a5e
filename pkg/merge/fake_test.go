package merge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/merge"
)

// fake is a shard with objects that have only names.
type fake struct {
	name   string
	server *httptest.Server

	mu      sync.Mutex
	changed *sync.Cond
	// history contains all changes; the revision of each is its index plus one.
	history   []change
	compacted int
	// epoch ends watches when it changes, down rejects all requests, and response replaces responses.
	epoch    int
	down     bool
	response *apierrors.StatusError
	requests []url.Values
	// cut ends watches after this number of initial events.
	cut int
	// clusters are the logical clusters of objects by name.
	clusters map[string]string
	// members are additional members of objects.
	members map[string]any
	// gates delay some initial events of watches.
	gates map[int]<-chan struct{}
}

type change struct{ kind, name string }

func newFake(t *testing.T, name string, objects ...string) *fake {
	t.Helper()
	f := &fake{name: name, cut: -1, history: []change{{"ADDED", "first"}, {"DELETED", "first"}}}
	f.changed = sync.NewCond(&f.mu)
	f.server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.end()
		f.server.Close()
	})
	f.add(objects...)
	return f
}

func (f *fake) add(names ...string) {
	for _, name := range names {
		f.happens("ADDED", name)
	}
}

func (f *fake) happens(kind, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.history = append(f.history, change{kind, name})
	f.changed.Broadcast()
}

// set changes the behavior of the shard, and ends its watches.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.epoch++
	f.changed.Broadcast()
}

func (f *fake) end() { f.set(func() {}) }

func (f *fake) shard() merge.Shard {
	return merge.Shard{Name: f.name, Number: merge.NumberOf(f.name), Get: func(ctx context.Context, query url.Values) (*http.Response, error) {
		f.mu.Lock()
		f.requests = append(f.requests, query)
		down := f.down
		f.mu.Unlock()
		if down {
			return nil, errors.New("connection refused")
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.server.URL+"/?"+query.Encode(), http.NoBody)
		if err != nil {
			return nil, err
		}
		return f.server.Client().Do(r)
	}}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	query := r.URL.Query()
	if f.response != nil {
		status(w, f.response)
		return
	}
	if query.Get("watch") != "" {
		f.watch(w, r, query)
		return
	}
	at, start := len(f.history), 0
	if token := query.Get("continue"); token != "" {
		_, _ = fmt.Sscanf(token, "%d-%d", &at, &start)
		if at == 0 {
			at = len(f.history)
		}
	} else if query.Get("resourceVersionMatch") == "Exact" {
		at, _ = strconv.Atoi(query.Get("resourceVersion"))
	}
	if at < f.compacted {
		expired := apierrors.NewResourceExpired("compacted")
		if query.Get("continue") != "" {
			expired.ErrStatus.Continue = fmt.Sprintf("0-%d", start)
		}
		status(w, expired)
		return
	}
	names, items := f.at(at), []any{}
	limit, _ := strconv.Atoi(query.Get("limit"))
	metadata := map[string]any{"resourceVersion": strconv.Itoa(at)}
	for i, name := range names {
		if limit > 0 && i >= start+limit {
			metadata["continue"], metadata["remainingItemCount"] = fmt.Sprintf("%d-%d", at, i), len(names)-i
			break
		}
		if i >= start {
			items = append(items, f.object(name, at))
		}
	}
	w.Header().Set("Content-Type", "application/json")
	// As for custom resources, the version is last.
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "items": items, "kind": "ThingList", "metadata": metadata})
}

// at returns the objects at a revision.
func (f *fake) at(revision int) []string {
	there := map[string]bool{}
	for _, c := range f.history[:revision] {
		there[c.name] = c.kind != "DELETED" && c.kind != "BOOKMARK"
	}
	names := []string{}
	for name, is := range there {
		if is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// object returns an object at a revision.
func (f *fake) object(name string, revision int) map[string]any {
	for revision > 0 && f.history[revision-1].name != name {
		revision--
	}
	metadata := map[string]any{"name": f.name + "/" + name, "resourceVersion": strconv.Itoa(revision)}
	if cluster, ok := f.clusters[name]; ok {
		metadata["annotations"] = map[string]any{"kcp.io/cluster": cluster}
	}
	object := map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": metadata}
	maps.Copy(object, f.members)
	return object
}

func (f *fake) bookmark(revision int, annotations map[string]any) map[string]any {
	return map[string]any{"type": "BOOKMARK", "object": map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"resourceVersion": strconv.Itoa(revision), "annotations": annotations}}}
}

func (f *fake) watch(w http.ResponseWriter, r *http.Request, query url.Values) {
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	initial := query.Get("sendInitialEvents") == "true"
	if !initial && from < f.compacted {
		status(w, apierrors.NewResourceExpired("too old"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	if initial {
		from = len(f.history)
		for i, name := range f.at(from) {
			if i == f.cut {
				return
			}
			if gate := f.gates[i]; gate != nil {
				_ = flush.Flush()
				select {
				case <-gate:
				case <-r.Context().Done():
					return
				}
			}
			_ = out.Encode(map[string]any{"type": "ADDED", "object": f.object(name, from)})
		}
		_ = out.Encode(f.bookmark(from, map[string]any{"k8s.io/initial-events-end": "true"}))
	}
	stop := context.AfterFunc(r.Context(), f.changed.Broadcast)
	defer stop()
	for epoch := f.epoch; epoch == f.epoch && r.Context().Err() == nil; f.changed.Wait() {
		for ; from < len(f.history); from++ {
			c := f.history[from]
			if c.kind == "BOOKMARK" {
				_ = out.Encode(f.bookmark(from+1, nil))
				continue
			}
			_ = out.Encode(map[string]any{"type": c.kind, "object": f.object(c.name, from+1)})
		}
		_ = flush.Flush()
	}
}

func status(w http.ResponseWriter, err *apierrors.StatusError) {
	response := err.Status()
	response.Kind, response.APIVersion = "Status", "v1"
	w.WriteHeader(int(response.Code))
	_ = json.NewEncoder(w).Encode(response)
}

var notServedResource = schema.GroupResource{Resource: "things"}

func notServed() *apierrors.StatusError { return apierrors.NewNotFound(notServedResource, "") }

// world contains the shards of a request.
type world struct {
	t  *testing.T
	mu sync.Mutex
	is []*fake
}

func newWorld(t *testing.T, shards ...*fake) *world {
	t.Helper()
	return &world{t: t, is: shards}
}

func (w *world) set(shards ...*fake) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.is = shards
}

// request returns a request with query parameters in pairs.
func (w *world) request(pairs ...string) *merge.Request {
	query := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		query.Set(pairs[i], pairs[i+1])
	}
	return &merge.Request{Path: "/api/v1/things", Query: query, Shards: func() ([]merge.Shard, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		var all []merge.Shard
		for _, f := range w.is {
			all = append(all, f.shard())
		}
		return all, nil
	}}
}

// partial returns a request that accepts missing shards.
func (w *world) partial(pairs ...string) *merge.Request {
	r := w.request(pairs...)
	r.Partial = true
	return r
}

type object struct {
	Kind     string
	Metadata struct {
		Name, ResourceVersion, Continue string
		RemainingItemCount              *int64
		Annotations                     map[string]string
	}
	Items []object
	Code  int32
}

func (o object) names() string {
	names := make([]string, len(o.Items))
	for i := range o.Items {
		names[i] = o.Items[i].Metadata.Name
	}
	return strings.Join(names, " ")
}
