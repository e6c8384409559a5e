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
	"github.com/shardplane/shardplane/pkg/customresource/versions"
)

// Objects of the group "" are served by the upstream handler as all others are, but for
// creating and updating them: its validation refuses any object whose apiVersion has no
// group. These requests are served here, by the same functions, with the scope that
// the upstream handler has for them and a registry that differs in its validation. So are
// all writes of a server of replicas, which keep more than upstream's would.

// serveCoreWrite serves a request to write an object that the upstream handler would not
// write as it should be, and reports whether it did. The others, those that are not possible included, are the
// upstream handler's.
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
	scope, err := writer.Scope(r.Context(), info.Subresource, func(ctx context.Context) (*handlers.RequestScope, error) { return s.askScope(ctx, info, sch) })
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

// writesHere reports whether a request is for objects, and in a way, that the upstream handler
// would refuse or take for others.
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

// coreHandler returns the handler of a request to write.
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

// askScope gets the upstream handler's scope of requests for a resource or subresource:
// what decodes, converts and encodes objects and keeps their managers. The handler
// shows it to admission, so it is asked to update an object that does not exist, and
// admission refuses.
func (s *Server) askScope(ctx context.Context, like *genericapirequest.RequestInfo, sch *definitions.Schema) (*handlers.RequestScope, error) {
	asked := *like
	asked.Verb, asked.Name = "update", "trial"
	body := map[string]any{
		"apiVersion": schema.GroupVersion{Group: like.APIGroup, Version: like.APIVersion}.String(), "kind": sch.Names().Kind,
		"metadata": map[string]any{"name": asked.Name, "namespace": asked.Namespace},
	}
	if asked.Subresource == "scale" {
		body["apiVersion"], body["kind"] = autoscalingv1.SchemeGroupVersion.String(), "Scale"
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	var shown atomic.Pointer[handlers.RequestScope]
	// Nothing else of the request: it is not this one that is audited, or warned.
	ctx = context.WithValue(versions.WithTrial(valueless{ctx}), shownScopeKey{}, &shown)
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "/", bytes.NewReader(data)) //nolint:contextcheck // it ends with ctx
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer := newResponse()
	s.serveUpstream(answer, r, &asked, sch.CRD())
	if scope := shown.Load(); scope != nil {
		return scope, nil
	}
	if err := ctx.Err(); err != nil {
		// The handler has not waited for admission, which may go on.
		return nil, apierrors.NewTimeoutError(fmt.Sprintf("the request ended before it was known how %s are written: %v", sch.Resource, err), 0)
	}
	return nil, apierrors.NewInternalError(fmt.Errorf("the scope of %s in version %s is not known: %s", sch.Resource, like.APIVersion, &answer.body))
}

// valueless is a context without the values of the one that it ends with.
type valueless struct{ context.Context } //nolint:containedctx // it is a context

// Value implements context.Context.
func (valueless) Value(any) any { return nil }

// shownScopeKey is the key of where admission puts the scope of a request.
type shownScopeKey struct{}

var errScopeShown = apierrors.NewBadRequest("this was a trial")

// coreAdmission is admission, and shows the scopes of requests to askScope.
type coreAdmission struct {
	next admission.Interface
	// terminating forbids creation while the definition is being deleted.
	terminating bool
}

var (
	_ admission.MutationInterface   = coreAdmission{}
	_ admission.ValidationInterface = coreAdmission{}
)

// Handles implements admission.Interface.
func (coreAdmission) Handles(admission.Operation) bool { return true }

// Admit implements admission.MutationInterface.
func (c coreAdmission) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if shown, ok := ctx.Value(shownScopeKey{}).(*atomic.Pointer[handlers.RequestScope]); ok {
		scope, _ := o.(*handlers.RequestScope)
		shown.Store(scope)
		return errScopeShown
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

// Validate implements admission.ValidationInterface.
func (c coreAdmission) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if next, ok := c.next.(admission.ValidationInterface); ok && next.Handles(a.GetOperation()) {
		return next.Validate(ctx, a, o)
	}
	return nil
}

// refuseCreation is the answer to who creates an object while the definition is being deleted.
func refuseCreation(resource schema.GroupResource, name string) error {
	return apierrors.NewForbidden(resource, name, errors.New("create not allowed while the definition of the resource is being deleted"))
}
