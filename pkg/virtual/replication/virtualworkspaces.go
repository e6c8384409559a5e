package replication

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

// objects implements definitions.Objects for replicas.
type objects struct {
	offering

	replicas *Replicas
}

// Of returns the objects of a resource that an export offers with virtual storage.
func (x *Replicas) Of(export client.Key, resource schema.GroupResource) definitions.Objects {
	return objects{replicas: x, offering: offering{export, resource}}
}

// In implements definitions.Objects.
func (o objects) In(ctx context.Context, cluster request.Cluster, sch *definitions.Schema, version string) (definitions.Reader, error) {
	of, err := o.replicas.offered(o.offering)
	if err != nil {
		return nil, request.Unavailable(fmt.Sprintf("%s cannot be served now: %v", o.resource, err))
	}
	spec := sch.Spec()
	switch converted := spec.Conversion != nil && spec.Conversion.Strategy == apiextensionsv1.WebhookConverter; {
	case spec.Scope != apiextensionsv1.ClusterScoped:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be served now: the provider's APIResourceSchema specifies that they are namespaced, which is not supported for replicas", o.resource)) //nolint:forbidigo // until the provider changes it
	case version != of.resource.Version && (converted || sch.Convert != nil):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s are replicated in %s and not converted: use that version", o.resource, of.resource.Version))
	}
	b, err := o.replicas.boardOf(ctx, of, o.offering)
	if err != nil {
		return nil, err
	}
	name := cluster.Name
	if cluster.Wildcard {
		name = of.cluster
	}
	gvk := schema.GroupVersionKind{Group: o.resource.Group, Version: version, Kind: sch.Names().Kind}
	read := b.Read(board.Content{
		Resource: o.resource,
		Show:     func(obj client.Object, version string) client.Object { return show(obj, gvk, name, version) },
		Fields:   fieldsOf(sch.Version(version).SelectableFields),
		List: func(meta metav1.ListMeta, shown []client.Object) runtime.Object {
			list := &unstructured.UnstructuredList{Object: map[string]any{}, Items: make([]unstructured.Unstructured, 0, len(shown))}
			list.SetGroupVersionKind(gvk.GroupVersion().WithKind(sch.Names().ListKind))
			list.SetResourceVersion(meta.ResourceVersion)
			list.SetContinue(meta.Continue)
			list.SetRemainingItemCount(meta.RemainingItemCount)
			for _, obj := range shown {
				if u, ok := obj.(*unstructured.Unstructured); ok {
					list.Items = append(list.Items, *u)
				}
			}
			return list
		},
	})
	return reader{read, o.replicas, offeringOf{o.offering, of}}, nil
}

// hidden contains prefixes of annotations that describe the origin of a replica.
var hidden = []string{request.ShardAnnotation, "cache.kcp.io/", "cache.shardplane.io/"}

// show returns a replica as an object of a consumer. The content is shared.
func show(obj client.Object, gvk schema.GroupVersionKind, cluster logicalcluster.Name, version string) client.Object {
	shown := &unstructured.Unstructured{Object: map[string]any{}}
	metadata := map[string]any{}
	if replica, ok := obj.(*unstructured.Unstructured); ok {
		maps.Copy(shown.Object, replica.Object)
		original, _ := replica.Object["metadata"].(map[string]any)
		maps.Copy(metadata, original)
		annotations := map[string]any{logicalcluster.AnnotationKey: cluster.String()}
		before, _ := original["annotations"].(map[string]any)
		for key, value := range before {
			if key != logicalcluster.AnnotationKey && !slices.ContainsFunc(hidden, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
				annotations[key] = value
			}
		}
		metadata["annotations"] = annotations
	}
	metadata["resourceVersion"] = version
	shown.Object["metadata"] = metadata
	shown.SetGroupVersionKind(gvk)
	return shown
}

func fieldsOf(selectable []apiextensionsv1.SelectableField) func(client.Object) fields.Set {
	return func(obj client.Object) fields.Set {
		set := fields.Set{"metadata.name": obj.GetName()}
		var content map[string]any
		if replica, ok := obj.(*unstructured.Unstructured); ok {
			content = replica.Object
		}
		for i := range selectable {
			path := strings.TrimPrefix(selectable[i].JSONPath, ".")
			set[path] = ""
			if value, found, _ := unstructured.NestedFieldNoCopy(content, strings.Split(path, ".")...); found && value != nil {
				set[path] = fmt.Sprint(value)
			}
		}
		return set
	}
}

// reader serves an offering. Its watches end when the source changes, so that clients list again.
type reader struct {
	*board.Reader

	replicas *Replicas
	of       offeringOf
}

// Watch implements rest.Watcher.
func (r reader) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	x, w := r.replicas, &openWatch{r.of, cancel}
	x.mu.Lock()
	x.watches[w] = struct{}{}
	x.mu.Unlock()
	context.AfterFunc(ctx, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.watches, w)
	})
	opened, err := r.Reader.Watch(ctx, options)
	if err != nil {
		cancel()
	}
	return opened, err
}

// VirtualWorkspaces serves the virtual workspaces of endpoint slices whose export has consumers on the shard.
type VirtualWorkspaces struct {
	Replicas *Replicas
	Bindings *bindings.Index
	// Inactive reports whether a logical cluster is marked inactive.
	Inactive func(name logicalcluster.Name) bool
	// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
}

// offer is a resource that an export offers through an endpoint slice.
type offer struct {
	export   *apisv1alpha2.APIExport
	resource *apisv1alpha2.ResourceSchema
}

// offerOf returns the offer through an endpoint slice, or nil. It returns an error if there is none in the loaded
// objects, but those of other shards are not loaded yet.
func (x *Replicas) offerOf(provider logicalcluster.Name, slice string) (*offer, error) {
	var unknown error
	for _, kind := range []string{apis.CachedSliceKind, apis.ClusterCachedSliceKind} {
		name, _, err := x.sliceOf(provider, kind, slice)
		var export *apisv1alpha2.APIExport
		if err == nil {
			export, err = x.config.Exports.Get(provider, "", name)
		}
		if err != nil {
			if !apierrors.IsNotFound(err) {
				unknown = err
			}
			continue
		}
		for i := range export.Spec.Resources {
			virtual := export.Spec.Resources[i].Storage.Virtual
			if virtual != nil && apis.CachedSliceKindOf(virtual.Reference) == kind && virtual.Reference.Name == slice {
				return &offer{export, &export.Spec.Resources[i]}, nil
			}
		}
	}
	return nil, unknown
}

func (v *VirtualWorkspaces) offered(ctx context.Context) (*offer, error) {
	provider, _ := request.ClusterFrom(ctx)
	return v.Replicas.offerOf(provider.Name, request.VirtualWorkspaceFrom(ctx).Name)
}

// Needs returns the permission that is required for access: the request's verb on apiexports/content of the export.
func (v *VirtualWorkspaces) Needs(ctx context.Context, a authorizer.Attributes) (authorizer.Attributes, error) {
	name := "-" // not a valid name of an export
	o, err := v.offered(ctx)
	if o != nil {
		name = o.export.Name
	}
	gv := apisv1alpha2.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: a.GetVerb(), ResourceRequest: true,
		APIGroup: gv.Group, APIVersion: gv.Version, Resource: "apiexports", Subresource: "content", Name: name,
	}, err
}

// Permits implements authz.VirtualWorkspaces. It also permits writes, which are rejected with 405 Method Not Allowed.
func (v *VirtualWorkspaces) Permits(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
	if !v.Shows(ctx) {
		_, err := v.offered(ctx)
		return authorizer.DecisionDeny, "no APIBinding in the logical cluster refers to the APIExport of the endpoint slice", err
	}
	return authorizer.DecisionAllow, "", nil
}

// Shows implements authz.VirtualWorkspaces: it reports whether the logical cluster binds the export.
func (v *VirtualWorkspaces) Shows(ctx context.Context) bool {
	in := request.VirtualWorkspaceFrom(ctx).In
	if in.Wildcard {
		return true
	}
	o, err := v.offered(ctx)
	return err == nil && o != nil && v.Bindings.Binds(in.Name, client.KeyOf(o.export))
}

// Serve redirects a request to the consumers, or returns an error.
func (v *VirtualWorkspaces) Serve(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next http.Handler) error {
	d, err := v.definition(r.Context(), info)
	if err != nil {
		return err
	}
	scope := request.ScopeFrom(r.Context())
	ctx := request.WithThrough(request.WithCluster(r.Context(), scope.VirtualWorkspace.In), request.Through{Provider: scope.Cluster.Name, VirtualWorkspace: scope.VirtualWorkspace.Name, Mount: scope.Mount})
	switch {
	case info.IsResourceRequest:
		next.ServeHTTP(w, r.WithContext(customresource.WithReadOnly(ctx, d)))
	case !v.ServeDocuments(w, r.WithContext(ctx), nil, []*definitions.Definition{d}):
		return request.NotFound("the virtual workspace of an endpoint slice only serves one resource, discovery and OpenAPI, not " + r.URL.Path)
	}
	return nil
}

func (v *VirtualWorkspaces) definition(ctx context.Context, info *genericapirequest.RequestInfo) (*definitions.Definition, error) {
	o, err := v.offered(ctx)
	scope := request.ScopeFrom(ctx)
	in := scope.VirtualWorkspace.In
	switch {
	case o == nil:
		const message = "the endpoint slice does not exist, or no APIExport in its workspace offers a resource through it"
		return nil, cmp.Or(err, error(request.NotFound(message)))
	case !in.Wildcard && v.Inactive(in.Name):
		return nil, request.StatusError(http.StatusForbidden, metav1.StatusReasonForbidden, "logical cluster is marked inactive")
	case in.Wildcard && !scope.Mount.Wildcard(info.Verb, info.IsResourceRequest):
		return nil, request.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			info.Verb+" is not supported in the `*` logical cluster: only list and watch of resources are")
	}
	resource := schema.GroupResource{Group: o.resource.Group, Resource: o.resource.Name}
	if requested := (schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}); info.IsResourceRequest && requested != resource {
		return nil, request.NotFound(fmt.Sprintf("only %s are served here", resource))
	}
	d, err := v.Bindings.Offered(ctx, o.export, o.resource)
	switch {
	case err != nil:
		return nil, err
	case d == nil:
		return nil, request.NotFound("the APIResourceSchema " + o.resource.Schema + " of the provider does not exist, or is not valid")
	case in.Wildcard:
		d.Verbs = &definitions.Verbs{Object: []string{"list", "watch"}}
	}
	return d, nil
}
