package clienttest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/request"
)

// get serves GET of one object.
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
	old, found := s.objects[q.key()]
	if refused := refusal(r.Method, q, old, preconditions); refused != nil {
		writeStatus(w, refused)
		return
	}
	s.revision++
	c := change{revision: s.revision, kind: "MODIFIED", resource: q.resource, object: obj}
	switch {
	case r.Method == http.MethodDelete:
		delete(s.objects, q.key())
		c.kind, c.object = "DELETED", old.DeepCopy()
	case found:
		obj.SetUID(old.GetUID())
		s.objects[q.key()] = obj
	default:
		c.kind = "ADDED"
		obj.SetUID(types.UID(fmt.Sprintf("uid-%d", s.revision)))
		s.objects[q.key()] = obj
	}
	c.object.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	s.record(c)
	code := http.StatusOK
	if r.Method == http.MethodPost {
		code = http.StatusCreated
	}
	writeObject(w, code, c.object)
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
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[logicalcluster.AnnotationKey] = q.cluster
	if q.shard != "" {
		annotations[request.ShardAnnotation] = q.shard
	}
	obj.SetAnnotations(annotations)
	obj.SetNamespace(q.namespace)
	gvks, _, err := s.scheme.ObjectKinds(sent)
	if err != nil {
		return nil, metav1.Preconditions{}, err
	}
	obj.SetGroupVersionKind(gvks[0])
	uid, version := obj.GetUID(), obj.GetResourceVersion()
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
