package customresource

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// patchTries is how often a strategic merge patch is applied that meets with other writes.
const patchTries = 5

// patchStrategically serves a strategic merge patch: it applies it to the object as it is,
// by the Go type, and has next serve what that changes as a JSON merge patch, of just that
// state of the object. If there is another one by then, it begins anew.
func (s *Server) patchStrategically(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next serveFunc) {
	patch, err := s.body(w, r)
	if err != nil {
		writeError(w, r, info, err)
		return
	}
	for try := 1; ; try++ {
		current := newResponse()
		get, asked := toGet(r, info)
		next(current, get, asked)
		if current.status != http.StatusOK {
			current.writeTo(w)
			return
		}
		merge, pinned, err := mergePatch(current.body.Bytes(), patch)
		if err != nil {
			writeError(w, r, info, err)
			return
		}
		patched := newResponse()
		next(patched, withBody(r, r.Method, string(types.MergePatchType), merge), info)
		if patched.status != http.StatusConflict || pinned || try == patchTries || r.Context().Err() != nil {
			patched.writeTo(w)
			return
		}
	}
}

// mergePatch returns the JSON merge patch that does to an object what a strategic merge
// patch does, and fails if the object has changed. pinned reports whether the patch itself
// says of which state of the object it is.
func mergePatch(object, strategic []byte) (merge []byte, pinned bool, err error) {
	var patch map[string]any
	if err := utiljson.Unmarshal(strategic, &patch); err != nil {
		return nil, false, apierrors.NewBadRequest("decoding the patch: " + err.Error())
	}
	var before, after map[string]any
	if err := errors.Join(utiljson.Unmarshal(object, &before), utiljson.Unmarshal(object, &after)); err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	current := unstructured.Unstructured{Object: before}
	typed, err := scheme.Scheme.New(current.GroupVersionKind())
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	if after, err = strategicpatch.StrategicMergeMapPatch(after, patch, typed); err != nil {
		return nil, false, patchError(err)
	}
	changes := difference(before, after)
	_, pinned, _ = unstructured.NestedFieldNoCopy(patch, "metadata", "resourceVersion")
	if !pinned {
		if err := unstructured.SetNestedField(changes, current.GetResourceVersion(), "metadata", "resourceVersion"); err != nil {
			return nil, false, apierrors.NewBadRequest("the patch removes metadata, which every object has")
		}
	}
	merge, err = json.Marshal(changes)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	return merge, pinned, nil
}

// patchError returns the error for a patch that cannot be applied, as a server answers that
// has the kind built in.
func patchError(err error) error {
	for _, malformed := range []error{
		mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat,
	} {
		if errors.Is(err, malformed) {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "the patch cannot be applied: " + err.Error(),
	}}
}

// difference returns the JSON merge patch that makes one object another.
func difference(before, after map[string]any) map[string]any {
	changes := map[string]any{}
	for key := range before {
		if _, kept := after[key]; !kept {
			changes[key] = nil
		}
	}
	for key, now := range after {
		was, had := before[key]
		old, oldIsMap := was.(map[string]any)
		fresh, isMap := now.(map[string]any)
		switch {
		case oldIsMap && isMap:
			if inner := difference(old, fresh); len(inner) > 0 {
				changes[key] = inner
			}
		case !had || !reflect.DeepEqual(was, now):
			changes[key] = now
		}
	}
	return changes
}
