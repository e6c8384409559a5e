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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
)

// The upstream handler serves objects of the core group except for creates and updates, because its validation
// rejects an apiVersion without a group. These requests are served here with the same functions and the
// upstream handler's scope, but with another validation. So are all writes of a server of replicas, which
// preserve more metadata.

// serveCoreWrite serves writes that the upstream handler cannot serve, and reports whether it did. All other
// requests, including invalid ones, are left to the upstream handler.
func (s *Server) serveCoreWrite(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, sch *definitions.Schema, terminating bool) bool {
	if !s.writesHere(info, sch) {
		return false
	}
	version := sch.Version(info.APIVersion)
	namespaced := sch.Spec().Scope == apiextensionsv1.NamespaceScoped
	if version == nil || !version.Served || namespaced != (info.Namespace != "") {
		return false
	}
	if !counted(info, sch.CRD()) {
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
	handler := s.coreHandler(info, writer, scope, coreAdmission{next: s.admission, terminating: terminating && info.Subresource == ""})
	resource := s.metricName(sch.Resource)
	metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), resource.Group, info.APIVersion, resource.Resource, info.Subresource,
		metrics.CleanScope(info), metrics.APIServerComponent, version.Deprecated, "", handler)(w, r)
	return true
}

// writesHere reports whether the upstream handler cannot serve a write.
func (s *Server) writesHere(info *genericapirequest.RequestInfo, sch *definitions.Schema) bool {
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

func (s *Server) coreHandler(info *genericapirequest.RequestInfo, writer *versions.CoreWriter, scope *handlers.RequestScope, admit admission.Interface) http.HandlerFunc {
	switch info.Verb {
	case "create":
		create := handlers.CreateResource(writer.Objects, scope, admit)
		if s.replicas {
			return s.replicaHandler(info, writer.Replicas, scope, create)
		}
		return create
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
		update := handlers.UpdateResource(updated, scope, admit)
		if s.replicas {
			return s.replicaHandler(info, writer.Replicas, scope, update)
		}
		return update
	}
	patches := []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		patches = append(patches, string(types.ApplyCBORPatchType))
	}
	return handlers.PatchResource(updated, scope, admit, patches)
}

// captureScope returns the upstream handler's scope for a resource or subresource, which decodes, converts and
// encodes objects and manages their fields. The handler passes the scope to admission. Therefore it receives
// an update of a nonexistent object, which admission rejects.
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
	ctx = context.WithValue(versions.WithTrial(valueless{ctx}), scopeKey{}, &captured)
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

// valueless is a context without values.
type valueless struct{ context.Context } //nolint:containedctx // it is a context

func (valueless) Value(any) any { return nil }

// scopeKey is the context key for captureScope's result.
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
