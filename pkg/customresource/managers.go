package customresource

import (
	"bytes"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/request/fieldmanagers"
)

// managed restricts managed fields in writes of objects that a webhook converts. The library may call the
// webhook for managed fields only in stored updates, which are limited per logical cluster. Therefore new
// objects have no managed fields in other versions, and a dry run treats them as fields of the request's
// version.
func (s *Server) managed(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo) (*http.Request, error) {
	dryRun := r.URL.Query().Has("dryRun")
	if dryRun {
		r = r.WithContext(versions.WithDryRun(r.Context()))
	}
	switch {
	case info.Verb == "create":
		return s.withManagers(w, r, info, ownManagers)
	case dryRun && info.Verb == "update" && info.Subresource == "":
		return s.withManagers(w, r, info, versions.SameManagers)
	case dryRun && info.Verb == "patch" && info.Subresource == "":
		return s.withoutManagers(w, r)
	default:
		return r, nil
	}
}

// ownManagers removes managed fields in other versions, and reports whether there were any.
func ownManagers(object *unstructured.Unstructured, groupVersion string) bool {
	brought := object.GetManagedFields()
	own := slices.DeleteFunc(slices.Clone(brought), func(m metav1.ManagedFieldsEntry) bool { return m.APIVersion != groupVersion })
	if len(own) == len(brought) {
		return false
	}
	if len(own) == 0 {
		own = nil // an empty list differs from none
	}
	object.SetManagedFields(own)
	return true
}

// withoutManagers rejects the dry run of a patch that contains managed fields.
func (s *Server) withoutManagers(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	body, err := s.body(w, r)
	if err != nil {
		return r, err
	}
	if fieldmanagers.Exceed(body, contentType(r), 0) {
		return r, apierrors.NewBadRequest("metadata.managedFields of objects that a webhook converts cannot be patched in a dry run")
	}
	return withBody(r, r.Method, r.Header.Get("Content-Type"), body), nil
}

// withManagers applies change to the object in the body of a request.
func (s *Server) withManagers(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, change func(object *unstructured.Unstructured, groupVersion string) bool) (*http.Request, error) {
	body, err := s.body(w, r)
	if err != nil {
		return r, err
	}
	mediaType := contentType(r)
	r = withBody(r, r.Method, r.Header.Get("Content-Type"), body)
	if mediaType == runtime.ContentTypeCBOR {
		return r, apierrors.NewBadRequest("objects that a webhook converts are created, and updated in a dry run, in JSON or YAML")
	}
	if mediaType == runtime.ContentTypeYAML {
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
