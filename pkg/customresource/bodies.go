package customresource

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"slices"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/fieldmanagers"
	"github.com/shardplane/shardplane/pkg/request/quantities"
)

// A custom resource may have a Kubernetes kind, such as Deployment. Clients have Go types for these kinds, and
// send protobuf and strategic merge patches, which upstream's handler of custom resources does not support.
// They are translated here to JSON and JSON merge patches with the same Go types.

var (
	jsonOfTypes     = jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, jsonserializer.SerializerOptions{})
	protobufOfTypes = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
)

type serveFunc func(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo)

// buffered reads the body of a request, whose size a filter has limited, and returns the request with the same body.
func buffered(r *http.Request) (*http.Request, []byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return r, nil, apierrors.NewBadRequest("reading the body: " + err.Error())
	}
	return withBody(r, r.Method, r.Header.Get("Content-Type"), body), body, nil
}

// jsonOf converts a protobuf body to JSON.
func jsonOf(r *http.Request) ([]byte, error) {
	_, body, err := buffered(r)
	if err != nil {
		return nil, err
	}
	if err := quantities.Check(body, runtime.ContentTypeProtobuf); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj, _, err := protobufOfTypes.Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var out bytes.Buffer
	if err := jsonOfTypes.Encode(obj, &out); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return out.Bytes(), nil
}

func withBody(r *http.Request, method, contentType string, body []byte) *http.Request {
	r = r.WithContext(r.Context())
	r.Method, r.Body, r.ContentLength = method, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header = r.Header.Clone()
	r.Header.Set("Content-Type", contentType)
	r.Header.Del("Content-Length")
	return r
}

// toGet returns a request for the object of a request as JSON.
func toGet(r *http.Request, info *genericapirequest.RequestInfo) (*http.Request, *genericapirequest.RequestInfo) {
	get := *info
	get.Verb = "get"
	where := *r.URL
	where.RawQuery = ""
	r = withBody(r.WithContext(genericapirequest.WithRequestInfo(r.Context(), &get)), http.MethodGet, "", nil)
	r.URL, r.Body = &where, http.NoBody
	r.Header = http.Header{"Accept": {runtime.ContentTypeJSON}, "User-Agent": r.Header.Values("User-Agent")}
	return r, &get
}

// wantsProtobuf reports whether a client accepts only whole objects in protobuf. Clients that also accept JSON
// get JSON, because it contains fields of the definition that the Go type does not have.
func wantsProtobuf(r *http.Request) bool {
	clauses := goautoneg.ParseAccept(r.Header.Get("Accept"))
	for _, clause := range clauses {
		if clause.Type+"/"+clause.SubType != runtime.ContentTypeProtobuf || clause.Params["as"] != "" {
			return false
		}
	}
	return len(clauses) > 0
}

func inProtobuf(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next serveFunc) {
	jsonRequest := r.WithContext(r.Context())
	jsonRequest.Header = r.Header.Clone()
	jsonRequest.Header.Set("Accept", runtime.ContentTypeJSON)
	jsonRequest.Header.Del("Accept-Encoding")
	response := documents.NewResponse()
	next(response, jsonRequest, info)
	var out bytes.Buffer
	err := quantities.Check(response.Body.Bytes(), runtime.ContentTypeJSON)
	if err == nil {
		var obj runtime.Object
		if obj, _, err = jsonOfTypes.Decode(response.Body.Bytes(), nil, nil); err == nil {
			err = protobufOfTypes.Encode(obj, &out)
		}
	}
	if err != nil { // the types of fields differ in the definition
		writeError(w, jsonRequest, info, negotiation.NewNotAcceptableError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML}))
		return
	}
	response.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	response.Header().Del("Content-Length")
	response.Body = out
	copyResponse(w, response)
}

// contentType returns the media type of the body. The filter that reads bodies rejects malformed ones.
func contentType(r *http.Request) string {
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return mediaType
}

func copyResponse(w http.ResponseWriter, from *documents.Response) {
	for name, values := range from.Header() {
		for _, value := range values {
			w.Header().Add(name, value)
		}
	}
	w.WriteHeader(from.Status)
	_, _ = w.Write(from.Body.Bytes()) // the client may have disconnected
}

const patchTries = 5

// patchStrategically applies a strategic merge patch to the current object with its Go type. It then calls
// next with the changes as a JSON merge patch for the resource version of this object. It retries after a
// conflict.
func patchStrategically(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next serveFunc) {
	_, patch, err := buffered(r)
	if err != nil {
		writeError(w, r, info, err)
		return
	}
	for try := 1; ; try++ {
		current := documents.NewResponse()
		get, getInfo := toGet(r, info)
		next(current, get, getInfo)
		if current.Status != http.StatusOK {
			copyResponse(w, current)
			return
		}
		merge, pinned, err := mergePatch(current.Body.Bytes(), patch)
		if err != nil {
			writeError(w, r, info, err)
			return
		}
		patched := documents.NewResponse()
		next(patched, withBody(r, r.Method, string(types.MergePatchType), merge), info)
		if patched.Status != http.StatusConflict || pinned || try == patchTries || r.Context().Err() != nil {
			copyResponse(w, patched)
			return
		}
	}
}

// mergePatch converts a strategic merge patch to a JSON merge patch that fails if the object has changed.
// pinned reports whether the patch itself contains a resource version.
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
			return nil, false, apierrors.NewBadRequest("the patch removes metadata, which is required")
		}
	}
	merge, err = json.Marshal(changes)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	return merge, pinned, nil
}

// patchError returns the same error as a server with a built-in kind.
func patchError(err error) error {
	for _, malformed := range []error{
		mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat,
	} {
		if errors.Is(err, malformed) {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	return request.StatusError(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the patch cannot be applied: "+err.Error())
}

// difference returns the JSON merge patch from before to after.
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

// managed restricts managed fields in writes of objects that a webhook converts. The library must call the
// webhook for managed fields only in stored updates, because only these are limited per logical cluster. New
// objects have no managed fields in other versions, and a dry run treats them as fields of the request's version.
func managed(r *http.Request, info *genericapirequest.RequestInfo) (*http.Request, error) {
	dryRun := r.URL.Query().Has("dryRun")
	if dryRun {
		r = r.WithContext(versions.WithDryRun(r.Context()))
	}
	switch {
	case info.Verb == "create":
		return withManagers(r, info, ownManagers)
	case dryRun && info.Verb == "update" && info.Subresource == "":
		return withManagers(r, info, versions.SameManagers)
	case dryRun && info.Verb == "patch" && info.Subresource == "":
		return withoutManagers(r)
	default:
		return r, nil
	}
}

// ownManagers removes managed fields in other versions, and reports whether there were any.
func ownManagers(object *unstructured.Unstructured, groupVersion string) bool {
	entries := object.GetManagedFields()
	own := slices.DeleteFunc(slices.Clone(entries), func(m metav1.ManagedFieldsEntry) bool { return m.APIVersion != groupVersion })
	if len(own) == len(entries) {
		return false
	}
	if len(own) == 0 {
		own = nil // an empty list differs from none
	}
	object.SetManagedFields(own)
	return true
}

// withoutManagers rejects the dry run of a patch that contains managed fields.
func withoutManagers(r *http.Request) (*http.Request, error) {
	r, body, err := buffered(r)
	if err == nil && fieldmanagers.Exceed(body, contentType(r), 0) {
		err = apierrors.NewBadRequest("metadata.managedFields of objects that a webhook converts cannot be patched in a dry run")
	}
	return r, err
}

// withManagers applies change to the object in the body of a request.
func withManagers(r *http.Request, info *genericapirequest.RequestInfo, change func(object *unstructured.Unstructured, groupVersion string) bool) (*http.Request, error) {
	r, body, err := buffered(r)
	if err != nil {
		return r, err
	}
	if contentType(r) == runtime.ContentTypeYAML {
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return r, apierrors.NewBadRequest(err.Error())
		}
	}
	if !bytes.Contains(body, []byte("managedFields")) && !bytes.ContainsRune(body, '\\') {
		return r, nil
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(body); err != nil {
		return r, apierrors.NewBadRequest(err.Error())
	}
	if !change(object, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}.String()) {
		return r, nil
	}
	changed, err := object.MarshalJSON()
	if err != nil {
		return r, apierrors.NewInternalError(err)
	}
	return withBody(r, r.Method, runtime.ContentTypeJSON, changed), nil
}
