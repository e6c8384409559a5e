package customresource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
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
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/apiserver/pkg/warning"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/request"
)

// The upstream handler serves objects of the core group except for creates and updates, because its validation
// rejects an apiVersion without a group. These requests are served here with the same functions and the scope
// of the upstream handler. The same applies to all writes of a server of replicas, which preserve more
// metadata.

// serveCoreWrite serves writes that the upstream handler cannot serve, and reports whether it did. All other
// requests, including invalid ones, are left to the upstream handler.
func (s *Server) serveCoreWrite(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, sch *definitions.Schema, terminating bool) bool {
	if !s.servesWrite(info, sch) {
		return false
	}
	version := sch.Version(info.APIVersion)
	namespaced := sch.Spec().Scope == apiextensionsv1.NamespaceScoped
	if version == nil || !version.Served || namespaced != (info.Namespace != "") || !counted(info, sch.CRD()) {
		return false
	}
	writer, done, err := s.stores.CoreWriter(sch, version)
	defer done()
	if err != nil {
		writeError(w, r, info, apierrors.NewInternalError(err))
		return true
	}
	scope, err := writer.Scope(r.Context(), info.Subresource, func(ctx context.Context) (*handlers.RequestScope, error) { return s.captureScope(ctx, info, sch) })
	if err != nil {
		writeError(w, r, info, err)
		return true
	}
	if version.Deprecated {
		warning.AddWarning(r.Context(), "", *version.DeprecationWarning)
	}
	handler := coreHandler(info, writer, scope, coreAdmission{next: s.admission, terminating: terminating && info.Subresource == ""})
	if s.replicas && (info.Verb == "create" || info.Verb == "update") {
		handler = replicaHandler(info, writer.Replicas, scope, handler)
	}
	s.instrumented(info, sch.Resource, version.Deprecated, handler)(w, r)
	return true
}

// servesWrite reports whether the upstream handler cannot serve a write.
func (s *Server) servesWrite(info *genericapirequest.RequestInfo, sch *definitions.Schema) bool {
	if sch.Resource.Group != "" && !s.replicas || sch.MetadataOnly {
		return false
	}
	switch info.Verb {
	case "create":
		return info.Subresource == ""
	case "update", "patch":
		return true
	case "delete", "deletecollection":
		return s.replicas
	default:
		return false
	}
}

func coreHandler(info *genericapirequest.RequestInfo, writer *versions.CoreWriter, scope *handlers.RequestScope, admit admission.Interface) http.HandlerFunc {
	switch info.Verb {
	case "create":
		return handlers.CreateResource(writer.Objects, scope, admit)
	case "delete":
		return handlers.DeleteResource(writer.Replicas, true, scope, admit)
	case "deletecollection":
		return handlers.DeleteCollection(writer.Replicas, true, scope, admit)
	default:
	}
	var updated rest.Patcher = writer.Objects
	switch info.Subresource {
	case "status":
		updated = writer.Status
	case "scale":
		updated = writer.Scale
	default:
	}
	if info.Verb == "update" {
		return handlers.UpdateResource(updated, scope, admit)
	}
	return handlers.PatchResource(updated, scope, admit, []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)})
}

// captureScope returns the upstream handler's scope for a resource or subresource. The handler passes it to
// admission. Therefore it receives an update of a nonexistent object, which admission rejects.
func (s *Server) captureScope(ctx context.Context, like *genericapirequest.RequestInfo, sch *definitions.Schema) (*handlers.RequestScope, error) {
	trial := *like
	trial.Verb, trial.Name = "update", "trial"
	body := map[string]any{
		"apiVersion": schema.GroupVersion{Group: like.APIGroup, Version: like.APIVersion}.String(), "kind": sch.Names().Kind,
		"metadata": map[string]any{"name": trial.Name, "namespace": trial.Namespace},
	}
	if trial.Subresource == "scale" {
		body["apiVersion"], body["kind"] = autoscalingv1.SchemeGroupVersion.String(), "Scale"
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	var captured atomic.Pointer[handlers.RequestScope]
	// Drops the values of the original request, e.g. for audit and warnings.
	ctx = context.WithValue(versions.WithTrial(withoutValues{ctx}), scopeKey{}, &captured)
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "/", bytes.NewReader(data)) //nolint:contextcheck // it ends with ctx
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	response := documents.NewResponse()
	s.serveUpstream(response, r, &trial, sch.CRD())
	if scope := captured.Load(); scope != nil {
		return scope, nil
	}
	if err := ctx.Err(); err != nil {
		// The handler may have returned before admission was called.
		return nil, apierrors.NewTimeoutError(fmt.Sprintf("the request ended before the scope of %s was determined: %v", sch.Resource, err), 0)
	}
	return nil, apierrors.NewInternalError(fmt.Errorf("cannot determine the scope of %s in version %s: %s", sch.Resource, like.APIVersion, &response.Body))
}

type withoutValues struct{ context.Context } //nolint:containedctx // it is a context

func (withoutValues) Value(any) any { return nil }

type scopeKey struct{}

var errScopeCaptured = apierrors.NewBadRequest("the scope was captured")

// coreAdmission wraps admission, and passes scopes to captureScope.
type coreAdmission struct {
	next admission.Interface
	// terminating forbids creation while the definition is being deleted.
	terminating bool
}

var (
	_ admission.MutationInterface   = coreAdmission{}
	_ admission.ValidationInterface = coreAdmission{}
)

func (coreAdmission) Handles(admission.Operation) bool { return true }

func (c coreAdmission) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if captured, ok := ctx.Value(scopeKey{}).(*atomic.Pointer[handlers.RequestScope]); ok {
		scope, _ := o.(*handlers.RequestScope)
		captured.Store(scope)
		return errScopeCaptured
	}
	if c.terminating && a.GetOperation() == admission.Create {
		return refuseCreation(a.GetResource().GroupResource(), a.GetName())
	}
	if next, ok := c.next.(admission.MutationInterface); ok && next.Handles(a.GetOperation()) {
		if err := admitted(ctx, a, o, next.Admit); err != nil {
			return err
		}
	}
	return checkCosts(ctx, a)
}

func (c coreAdmission) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if next, ok := c.next.(admission.ValidationInterface); ok && next.Handles(a.GetOperation()) {
		return next.Validate(ctx, a, o)
	}
	return nil
}

func refuseCreation(resource schema.GroupResource, name string) error {
	return apierrors.NewForbidden(resource, name, errors.New("create not allowed while the definition of the resource is being deleted"))
}

// Upstream's handlers remove server-set metadata from objects. Replicas, which must keep it, are written here.

// replicaHandler creates or replaces a replica, i.e. an object with the shard annotation; next handles other objects.
func replicaHandler(info *genericapirequest.RequestInfo, replicas *versions.Replicas, scope *handlers.RequestScope, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if contentType(r) != runtime.ContentTypeJSON {
			next(w, r)
			return
		}
		r, body, err := buffered(r)
		if err != nil {
			writeError(w, r, info, err)
			return
		}
		var sent metav1.PartialObjectMetadata
		if err := utiljson.Unmarshal(body, &sent); err != nil || sent.Annotations[request.ShardAnnotation] == "" {
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
// defaults, and versions are converted by name only. There are no subresources, so that the status is written
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
