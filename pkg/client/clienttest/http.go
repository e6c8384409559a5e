package clienttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/shardplane/shardplane/pkg/request"
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
	apiVersion, kind := q.typeMeta()
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": apiVersion, "kind": kind + "List", "metadata": meta, "items": items})
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

	defer context.AfterFunc(r.Context(), func() { s.update(func() {}) })()
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
	apiVersion, kind := q.typeMeta()
	return map[string]any{
		"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(rv, 10), "annotations": annotations},
	}
}

func (s *Server) get(w http.ResponseWriter, q query) {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj, found := s.objects[q.key()]
	if !found {
		writeStatus(w, apierrors.NewNotFound(q.resource.GroupResource(), q.name))
		return
	}
	writeObject(w, http.StatusOK, obj)
}

// write serves POST, PUT and DELETE of one object, with the preconditions that UID and
// resourceVersion are.
func (s *Server) write(w http.ResponseWriter, r *http.Request, q query) {
	obj, preconditions, err := s.body(r, q)
	if err != nil {
		writeStatus(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	if r.Method == http.MethodPost {
		q.name = obj.GetName()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused := refusal(r.Method, q, s.objects[q.key()], preconditions); refused != nil {
		writeStatus(w, refused)
		return
	}
	code := http.StatusOK
	if r.Method == http.MethodPost {
		code = http.StatusCreated
	}
	if r.Method == http.MethodDelete {
		obj = s.remove(q.key(), q.resource)
	} else {
		s.put(q.key(), q.resource, obj)
	}
	writeObject(w, code, obj)
}

// refusal returns why a write is refused, or nil.
func refusal(method string, q query, old *unstructured.Unstructured, preconditions metav1.Preconditions) *apierrors.StatusError {
	resource := q.resource.GroupResource()
	differs := func(want *string, have string) bool { return want != nil && *want != "" && *want != have }
	switch {
	case method == http.MethodPost && old != nil:
		return apierrors.NewAlreadyExists(resource, q.name)
	case method == http.MethodPost:
		return nil
	case old == nil:
		return apierrors.NewNotFound(resource, q.name)
	case differs((*string)(preconditions.UID), string(old.GetUID())), differs(preconditions.ResourceVersion, old.GetResourceVersion()):
		return apierrors.NewConflict(resource, q.name, fmt.Errorf("the object has version %s", old.GetResourceVersion()))
	default:
		return nil
	}
}

// body returns the object of a request, and its preconditions.
func (s *Server) body(r *http.Request, q query) (*unstructured.Unstructured, metav1.Preconditions, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, metav1.Preconditions{}, err
	}
	codecs := serializer.NewCodecFactory(s.scheme)
	if r.Method == http.MethodDelete {
		options := &metav1.DeleteOptions{}
		if len(raw) > 0 {
			if _, _, err := codecs.UniversalDeserializer().Decode(raw, nil, options); err != nil {
				return nil, metav1.Preconditions{}, err
			}
		}
		if options.Preconditions == nil {
			options.Preconditions = &metav1.Preconditions{}
		}
		return nil, *options.Preconditions, nil
	}
	sent, _, err := codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, metav1.Preconditions{}, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(sent)
	if err != nil {
		return nil, metav1.Preconditions{}, err
	}
	obj := &unstructured.Unstructured{Object: content}
	// These cannot fail, because the annotations were a map of strings.
	_ = unstructured.SetNestedField(content, q.cluster, "metadata", "annotations", logicalcluster.AnnotationKey)
	if q.shard != "" {
		_ = unstructured.SetNestedField(content, q.shard, "metadata", "annotations", request.ShardAnnotation)
	}
	obj.SetNamespace(q.namespace)
	gvks, _, err := s.scheme.ObjectKinds(sent)
	if err != nil {
		return nil, metav1.Preconditions{}, err
	}
	obj.SetGroupVersionKind(gvks[0])
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	obj.SetUID("") // the server sets it
	return obj, metav1.Preconditions{UID: &uid, ResourceVersion: &version}, nil
}

func writeObject(w http.ResponseWriter, code int, obj *unstructured.Unstructured) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(obj.Object)
}

func writeStatus(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}
