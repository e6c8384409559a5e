package customresource

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/request"
)

// Upstream's handlers remove server-set metadata from objects. Replicas, which must keep it, are written here.

// replicaHandler creates or replaces a replica, i.e. an object with the shard annotation; next handles other
// objects.
func (s *Server) replicaHandler(info *genericapirequest.RequestInfo, replicas *versions.Replicas, scope *handlers.RequestScope, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if contentType(r) != runtime.ContentTypeJSON {
			next(w, r)
			return
		}
		body, err := s.body(w, r)
		if err != nil {
			writeError(w, r, info, err)
			return
		}
		var sent metav1.PartialObjectMetadata
		if err := utiljson.Unmarshal(body, &sent); err != nil || sent.Annotations[request.ShardAnnotation] == "" {
			r.Body = io.NopCloser(bytes.NewReader(body))
			next(w, r)
			return
		}
		written, status, err := writeReplica(r, info, replicas, scope, &sent, body)
		if err != nil {
			writeError(w, r, info, err)
			return
		}
		responsewriters.WriteObjectNegotiated(scope.Serializer, negotiation.DefaultEndpointRestrictions, scope.Kind.GroupVersion(), w, r, status, written, false)
	}
}

func writeReplica(r *http.Request, info *genericapirequest.RequestInfo, replicas *versions.Replicas, scope *handlers.RequestScope, sent *metav1.PartialObjectMetadata, body []byte) (written runtime.Object, status int, err error) {
	options := &metav1.CreateOptions{} // the same as those of an update
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), scope.MetaGroupVersion, options); err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	if errs := metav1validation.ValidateCreateOptions(options); len(errs) > 0 {
		return nil, 0, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "CreateOptions"}, "", errs)
	}
	obj, err := replicaOf(info, scope.Kind, sent, body)
	if err != nil {
		return nil, 0, err
	}
	ctx := genericapirequest.WithNamespace(r.Context(), info.Namespace)
	audit.LogRequestObject(ctx, obj, scope.Kind.GroupVersion(), scope.Resource, "", scope.Serializer)
	if info.Verb == "create" {
		written, err = replicas.Create(ctx, obj, dryrun.IsDryRun(options.DryRun))
		return written, http.StatusCreated, err
	}
	if obj.GetResourceVersion() == "" {
		return nil, 0, apierrors.NewInvalid(scope.Kind.GroupKind(), info.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), "", "must be specified for an update"),
		})
	}
	written, err = replicas.Replace(ctx, obj, dryrun.IsDryRun(options.DryRun))
	return written, http.StatusOK, err
}

// replicaOf decodes a replica with the given metadata. Its own shard has validated its content.
func replicaOf(info *genericapirequest.RequestInfo, kind schema.GroupVersionKind, sent *metav1.PartialObjectMetadata, body []byte) (*unstructured.Unstructured, error) {
	if got := sent.GroupVersionKind(); got != kind {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the object is a %s, but the URL requires a %s", got, kind))
	}
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(info.Namespace, &sent.ObjectMeta); err != nil {
		return nil, err
	}
	if info.Name != "" && sent.Name != info.Name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", sent.Name, info.Name))
	}
	sent.DeletionTimestamp, sent.DeletionGracePeriodSeconds = nil, nil
	isName := func(name string, _ bool) []string { return content.IsPathSegmentName(name) }
	if errs := validation.ValidateObjectMeta(&sent.ObjectMeta, info.Namespace != "", isName, field.NewPath("metadata")); len(errs) > 0 {
		return nil, apierrors.NewInvalid(kind.GroupKind(), sent.Name, errs)
	}
	metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&sent.ObjectMeta)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(body, &obj.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj.Object["metadata"] = metadata
	return obj, nil
}

// Opaque returns a copy of crd for a server of replicas. All fields are preserved without validation or
// defaults, versions are converted by name only, and there are no subresources, so that the status is written
// together with its object.
func Opaque(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	out := crd.DeepCopy()
	out.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	out.Spec.PreserveUnknownFields = false
	for i := range out.Spec.Versions {
		v := &out.Spec.Versions[i]
		v.Schema = &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)},
		}
		v.Subresources, v.Deprecated, v.DeprecationWarning = nil, false, nil
	}
	return out
}

// OpaqueSchema returns the opaque schema of a cluster-scoped resource with the given kind.
func OpaqueSchema(resource schema.GroupVersionResource, kind string) (*definitions.Schema, error) {
	crd := Opaque(&apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: resource.Group,
		Names: apiextensionsv1.CustomResourceDefinitionNames{
			Plural: resource.Resource, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List",
		},
		Scope:    apiextensionsv1.ClusterScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: resource.Version, Served: true, Storage: true}},
	}})
	return definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
}
