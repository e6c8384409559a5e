package clienttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// ServeHTTP serves LIST and WATCH, and reads and writes of one object.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	failing := s.failing
	s.mu.Unlock()
	if failing != 0 {
		writeStatus(w, apierrors.NewGenericServerResponse(failing, r.Method, schema.GroupResource{}, "", "injected failure", 0, true))
		return
	}
	q, err := parseQuery(r)
	switch {
	case err != nil:
		writeStatus(w, apierrors.NewBadRequest(err.Error()))
	case r.Method == http.MethodPost, r.Method == http.MethodPut, r.Method == http.MethodDelete:
		s.write(w, r, q)
	case r.Method != http.MethodGet:
		writeStatus(w, apierrors.NewMethodNotSupported(q.resource.GroupResource(), r.Method))
	case q.name != "":
		s.get(w, q)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, q)
	default:
		s.list(w, r, q)
	}
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, q query) {
	s.mu.Lock()
	s.lists++
	rv := s.revision
	objs := s.snapshot(q)
	compacted := s.compacted
	s.mu.Unlock()

	start := 0
	if token := r.URL.Query().Get("continue"); token != "" {
		if _, err := fmt.Sscanf(token, "%d-%d", &rv, &start); err != nil {
			writeStatus(w, apierrors.NewBadRequest("invalid continue token"))
			return
		}
		if rv < compacted {
			writeStatus(w, apierrors.NewResourceExpired("the continue token is too old"))
			return
		}
	}
	meta := map[string]any{"resourceVersion": strconv.FormatInt(rv, 10)}
	if !q.ranges.Empty() {
		meta["shardInfo"] = map[string]any{"selector": q.ranges.String()}
	}
	end := len(objs)
	if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && limit > 0 && start+limit < end {
		end = start + limit
		meta["continue"] = fmt.Sprintf("%d-%d", rv, end)
		if q.selector.Empty() && q.ranges.Empty() {
			meta["remainingItemCount"] = len(objs) - end
		}
	}
	items := make([]any, 0, len(objs))
	for _, obj := range objs[min(start, end):end] {
		items = append(items, q.project(obj))
	}
	w.Header().Set("Content-Type", "application/json")
	response := map[string]any{"apiVersion": q.resource.GroupVersion().String(), "kind": q.kind() + "List", "metadata": meta, "items": items}
	if q.metadata {
		response["apiVersion"], response["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	_ = json.NewEncoder(w).Encode(response)
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, q query) {
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches++
	from, err := s.watchStart(r.URL.Query().Get("resourceVersion"), initial)
	if err != nil {
		writeStatus(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := &events{encoder: json.NewEncoder(w), flush: http.NewResponseController(w)}
	if initial {
		for _, obj := range s.snapshot(q) {
			out.send("ADDED", q.project(obj))
		}
		annotations := map[string]any{metav1.InitialEventsAnnotationKey: "true"}
		if !q.ranges.Empty() {
			annotations[hashrange.InfoAnnotation] = q.ranges.String()
		}
		out.send("BOOKMARK", bookmark(q, from, annotations))
	}
	out.err = errors.Join(out.err, out.flush.Flush())
	// Like kube-apiserver shortly before the end of a watch.
	timeout, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	short := !initial && timeout > 0 && timeout < 10 && r.URL.Query().Get("allowWatchBookmarks") == "true"

	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.cond.Broadcast()
		case <-stop:
		}
	}()
	epoch, bookmarks := s.epoch, s.bookmarks
	for at := 0; epoch == s.epoch && out.err == nil && r.Context().Err() == nil; {
		for ; at < len(s.history); at++ {
			c := s.history[at]
			if c.revision > from && c.resource == q.resource && q.matches(c.object) {
				out.send(c.kind, q.project(c.object))
			}
		}
		if short || bookmarks != s.bookmarks {
			out.send("BOOKMARK", bookmark(q, s.revision, map[string]any{}))
			short, bookmarks = false, s.bookmarks
		}
		out.err = errors.Join(out.err, out.flush.Flush())
		s.cond.Wait()
	}
}

func (s *Server) watchStart(rv string, initial bool) (int64, *apierrors.StatusError) {
	if initial {
		if s.noWatchList {
			return 0, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
		}
		return s.revision, nil
	}
	from, err := strconv.ParseInt(rv, 10, 64)
	switch {
	case err != nil:
		return 0, apierrors.NewBadRequest("invalid resourceVersion")
	case from < s.compacted:
		return 0, apierrors.NewResourceExpired("too old resource version")
	case from > s.revision:
		e := apierrors.NewTimeoutError("Too large resource version", 1)
		e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return 0, e
	}
	return from, nil
}

type events struct {
	encoder *json.Encoder
	flush   *http.ResponseController
	err     error
}

func (e *events) send(kind string, obj map[string]any) {
	e.err = errors.Join(e.err, e.encoder.Encode(map[string]any{"type": kind, "object": obj}))
}

func bookmark(q query, rv int64, annotations map[string]any) map[string]any {
	obj := map[string]any{
		"apiVersion": q.resource.GroupVersion().String(), "kind": q.kind(),
		"metadata": map[string]any{
			"resourceVersion": strconv.FormatInt(rv, 10),
			"annotations":     annotations,
		},
	}
	if q.metadata {
		obj["apiVersion"], obj["kind"] = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	return obj
}
