package apikinds_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/admission/apikinds"
	"github.com/shardplane/shardplane/pkg/admission/percluster"
	apirules "github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// plugin has a provider, with the export e that alice may bind.
func plugin(current error) percluster.Plugin {
	return apikinds.NewAPIKinds(apikinds.Config{
		Current: func() error { return current },
		Resolve: func(path logicalcluster.Path, export string) (logicalcluster.Name, bool, error) {
			switch path.String() {
			case "root:org:provider", "provider":
				return "provider", export != "elsewhere", nil
			case "root:org:unknown":
				return "", false, client.ErrIncomplete
			default:
				return "", false, current
			}
		},
		Find: func(_ context.Context, path logicalcluster.Path) (logicalcluster.Name, error) {
			switch path.String() {
			case "root:org:far":
				return "far", nil
			case "root:org:unknown":
				return "", client.ErrIncomplete
			default:
				return "", nil
			}
		},
		PathOf: func(cluster logicalcluster.Name) (string, bool) {
			return "root:" + cluster.String(), cluster != "pathless"
		},
		MayBind: func(_ context.Context, u user.Info, provider logicalcluster.Name, export string) (bool, error) {
			if u.GetName() == "unlucky" {
				return false, errors.New("connection refused")
			}
			return u.GetName() == "alice" && export == "e" && (provider == "provider" || provider == "here"), nil
		},
		Schema: func(_ context.Context, cluster logicalcluster.Name, name string) (*apirules.APIResourceSchema, error) {
			if name == "v3.widgets.example.org" {
				return nil, errors.New("connection refused")
			}
			if cluster != "here" || name != "v1.widgets.example.org" {
				return nil, nil
			}
			s := &apirules.APIResourceSchema{}
			return s, yaml.Unmarshal([]byte(twoVersions), s)
		},
	})
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
	return u
}

type call struct {
	resource, subresource string
	object, old           *unstructured.Unstructured
	user                  string
	groups                []string
	cluster               logicalcluster.Name
	// current is the error while the data is incomplete.
	current error
}

func (c call) write(t *testing.T, between func(*unstructured.Unstructured)) error {
	t.Helper()
	operation, old := admission.Create, runtime.Object(nil)
	if c.old != nil {
		operation, old = admission.Update, c.old
	}
	ctx := request.WithClusterName(t.Context(), cmp.Or(c.cluster, "here"))
	resource := schema.GroupVersionResource{Group: c.object.GroupVersionKind().Group, Version: c.object.GroupVersionKind().Version, Resource: c.resource}
	a := admission.NewAttributesRecord(c.object, old, c.object.GroupVersionKind(), "", c.object.GetName(), resource, c.subresource, operation, nil, false, &user.DefaultInfo{Name: c.user, Groups: c.groups})
	p := plugin(c.current)
	require.NoError(t, p.Admit(ctx, a, nil))
	if between != nil {
		between(c.object)
	}
	return p.Validate(ctx, a, nil)
}

const (
	binding     = "{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {path: 'root:org:provider', name: e}}}}"
	local       = "{apiVersion: apis.kcp.io/v1alpha1, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {name: e}}}}"
	nowhere     = "{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {path: 'root:org:nowhere', name: e}}}}"
	far         = "{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {path: 'root:org:far', name: e}}}}"
	unknown     = "{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {path: 'root:org:unknown', name: e}}}}"
	none        = "{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {path: provider, name: none}}}}"
	cachedSlice = "{apiVersion: cache.kcp.io/v1alpha1, kind: CachedResourceEndpointSlice, metadata: {name: b}, spec: {cachedResource: {name: c}, export: {path: 'root:org:provider', name: e}}}"
	slice       = "{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportEndpointSlice, metadata: {name: b}, spec: {export: {path: 'root:org:provider', name: e}}}"
)

func TestNewBindings(t *testing.T) {
	for text, provider := range map[string]logicalcluster.Name{binding: "provider", local: "here"} {
		object := parse(t, text)
		object.SetAnnotations(map[string]string{"apis.v1alpha2.kcp.io/v1alpha1-status-export-permission-claims": "{"})
		require.NoError(t, call{resource: "apibindings", object: object, user: "alice"}.write(t, nil))
		require.Equal(t, []string{"apis.kcp.io/apibinding-finalizer"}, object.GetFinalizers())
		require.Equal(t, map[string]string{"internal.apis.kcp.io/export": apirules.ExportLabelValue(provider, "e")}, object.GetLabels())
		require.Empty(t, object.GetAnnotations(), "a new object must not keep a status annotation")
	}
}

// TestPermission checks that the response to users who may not bind is the same whether or not the export
// exists.
func TestPermission(t *testing.T) {
	for _, tc := range []struct {
		name, resource, object, user string
		groups                       []string
		current                      error
		wantErr                      string
	}{
		{name: "permitted", resource: "apibindings", object: binding, user: "alice"},
		{name: "permitted in the same logical cluster", resource: "apibindings", object: local, user: "alice"},
		{name: "denied", resource: "apibindings", object: binding, user: "bob", wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind to export root:org:provider:e`},
		{name: "denied in the same logical cluster", resource: "apibindings", object: local, user: "bob", wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind to export root:here:e`},
		{name: "no such export", resource: "apibindings", object: none, user: "bob", wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind to export provider:none`},
		{name: "no such provider", resource: "apibindings", object: nowhere, user: "bob", wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind to export root:org:nowhere:e`},
		{name: "no such provider, user with permission elsewhere", resource: "apibindings", object: nowhere, user: "alice", wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind to export root:org:nowhere:e`},
		{name: "administrator", resource: "apibindings", object: none, user: "root", groups: []string{"system:kcp:admin"}},
		{name: "system", resource: "apibindings", object: none, user: "root", groups: []string{user.SystemPrivilegedGroup}},
		{name: "administrator, missing export of another shard", resource: "apibindings", object: strings.Replace(none, "name: none", "name: elsewhere", 1), user: "root", groups: []string{"system:kcp:admin"}},
		{name: "other user, missing export of another shard", resource: "apibindings", object: strings.Replace(none, "name: none", "name: elsewhere", 1), user: "alice", wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind to export provider:elsewhere`},
		{name: "administrator, provider that is not replicated", resource: "apibindings", object: far, user: "root", groups: []string{"system:kcp:admin"}},
		{name: "administrator, unreachable shard", resource: "apibindings", object: unknown, user: "root", groups: []string{"system:kcp:admin"}, wantErr: "cannot determine"},
		{name: "other user, provider that is not replicated", resource: "apibindings", object: far, user: "alice", wantErr: `no permission to bind to export root:org:far:e`},
		{name: "system, no such provider", resource: "apibindings", object: nowhere, user: "root", groups: []string{user.SystemPrivilegedGroup}, wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind`},
		{name: "provider not replicated yet", resource: "apibindings", object: unknown, user: "bob", wantErr: "cannot determine"},
		{name: "permitted, incomplete data", resource: "apibindings", object: binding, user: "alice", current: client.ErrIncomplete},
		{name: "denied, incomplete data", resource: "apibindings", object: binding, user: "bob", current: client.ErrIncomplete, wantErr: "cannot determine whether export e may be bound, try again: "},
		{name: "no such provider, incomplete data", resource: "apibindings", object: nowhere, user: "bob", current: client.ErrIncomplete, wantErr: "cannot determine whether export e may be bound, try again: "},
		{name: "denied in the same logical cluster, incomplete data", resource: "apibindings", object: local, user: "bob", current: client.ErrIncomplete, wantErr: `"b" is forbidden: unable to create APIBinding: no permission to bind to export root:here:e`},
		{name: "slice", resource: "apiexportendpointslices", object: slice, user: "alice"},
		{name: "cached slice", resource: "cachedresourceendpointslices", object: cachedSlice, user: "alice"},
		{name: "cached slice, denied", resource: "cachedresourceendpointslices", object: cachedSlice, user: "bob", wantErr: "no permission to bind to export root:org:provider:e"},
		{name: "cached slice, path", resource: "cachedresourceendpointslices", object: strings.Replace(cachedSlice, "name: c", "name: c, path: here", 1), user: "alice"},
		{name: "cached slice, canonical path", resource: "cachedresourceendpointslices", object: strings.Replace(cachedSlice, "name: c", "name: c, path: 'root:here'", 1), user: "alice"},
		{name: "cached slice, path of another workspace", resource: "cachedresourceendpointslices", object: strings.Replace(cachedSlice, "name: c", "name: c, path: 'root:org:provider'", 1), user: "alice", wantErr: "spec.cachedResource.path"},
		{name: "cached slice, no name", resource: "cachedresourceendpointslices", object: strings.Replace(cachedSlice, "name: c", "name: ''", 1), user: "alice", wantErr: "spec.cachedResource.name"},
		{name: "cluster-scoped cached slice, denied", resource: "clustercachedresourceendpointslices", object: strings.ReplaceAll(cachedSlice, "cachedResource", "clusterCachedResource"), user: "bob", wantErr: "no permission to bind to export root:org:provider:e"},
		{name: "slice, denied", resource: "apiexportendpointslices", object: slice, user: "bob", wantErr: `"b" is forbidden: no permission to bind to export root:org:provider:e`},
		{name: "failed authorization, no such provider", resource: "apibindings", object: nowhere, user: "unlucky", wantErr: "try again"},
		{name: "failed authorization", resource: "apibindings", object: binding, user: "unlucky", wantErr: "try again"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := call{resource: tc.resource, object: parse(t, tc.object), user: tc.user, groups: tc.groups, current: tc.current}.write(t, nil)
			if tc.wantErr == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.wantErr)
			if strings.Contains(err.Error(), "try again") {
				requireUnavailable(t, err)
				return
			}
			require.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err) && strings.HasPrefix(tc.wantErr, "spec."), "%v", err)
		})
	}
}

// requireUnavailable requires that clients retry the request.
func requireUnavailable(t *testing.T, err error) {
	t.Helper()
	require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	_, later := apierrors.SuggestsClientDelay(err)
	require.True(t, later, "%v", err)
}

// TestDenialsDoNotDisclose checks that a denied request causes the same lookups, authorizations and errors,
// in the same order, whether or not the export and its logical cluster exist.
func TestDenialsDoNotDisclose(t *testing.T) {
	for _, kind := range []struct{ resource, object string }{
		{"apibindings", "{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {path: 'PATH', name: NAME}}}}"},
		{"apiexportendpointslices", "{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportEndpointSlice, metadata: {name: b}, spec: {export: {path: 'PATH', name: NAME}}}"},
		{"cachedresourceendpointslices", "{apiVersion: cache.kcp.io/v1alpha1, kind: CachedResourceEndpointSlice, metadata: {name: b}, spec: {cachedResource: {name: c}, export: {path: 'PATH', name: NAME}}}"},
		{"clustercachedresourceendpointslices", "{apiVersion: cache.kcp.io/v1alpha1, kind: ClusterCachedResourceEndpointSlice, metadata: {name: b}, spec: {clusterCachedResource: {name: c}, export: {path: 'PATH', name: NAME}}}"},
		{"workspacetypes", "{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: b}, spec: {defaultAPIBindings: [{path: 'PATH', export: NAME}]}}"},
	} {
		for _, failure := range []error{nil, errors.New("unknown")} {
			deny := func(path, export string) (calls []string, err error) {
				object := parse(t, strings.NewReplacer("PATH", path, "NAME", export).Replace(kind.object))
				gvk := object.GroupVersionKind()
				a := admission.NewAttributesRecord(object, nil, gvk, "", "b", schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: kind.resource}, "", admission.Create, nil, false, &user.DefaultInfo{Name: "bob"})
				ctx := request.WithClusterName(t.Context(), "here")
				p := recording(&calls, failure)
				require.NoError(t, p.Admit(ctx, a, nil))
				return calls, p.Validate(ctx, a, nil)
			}
			calls, denial := deny("root:org:provider", "e")
			require.Error(t, denial)
			require.Contains(t, calls, "may bind")
			for _, other := range [][2]string{{"root:org:provider", "none"}, {"root:org:nowhere", "e"}, {"nowhere", "e"}} {
				same, err := deny(other[0], other[1])
				require.Equal(t, calls, same, "%s: %v", kind.resource, other)
				require.Equal(t, apierrors.ReasonForError(denial), apierrors.ReasonForError(err), "%s: %v", kind.resource, other)
				text := strings.ReplaceAll(strings.ReplaceAll(err.Error(), other[0], "root:org:provider"), ":"+other[1], ":e")
				require.Equal(t, denial.Error(), strings.ReplaceAll(text, "export none may", "export e may"), "%s: %v", kind.resource, other)
			}
		}
	}
}

// recording returns a plugin that records its calls and denies all requests.
func recording(calls *[]string, failure error) percluster.Plugin {
	note := func(call string) { *calls = append(*calls, call) }
	return apikinds.NewAPIKinds(apikinds.Config{
		Current: func() error { note("current"); return nil },
		Resolve: func(path logicalcluster.Path, export string) (logicalcluster.Name, bool, error) {
			note("resolve")
			if path.String() == "root:org:provider" {
				return "provider", export == "e", nil
			}
			return "", false, nil
		},
		PathOf: func(logicalcluster.Name) (string, bool) { note("path"); return "", false },
		MayBind: func(context.Context, user.Info, logicalcluster.Name, string) (bool, error) {
			note("may bind")
			return false, failure
		},
	})
}

// TestServerMetadataIsProtected checks that webhooks and policies cannot change metadata that the server sets.
func TestServerMetadataIsProtected(t *testing.T) {
	for message, meddle := range map[string]func(*unstructured.Unstructured){
		"metadata.labels":     func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{apirules.ExportLabel: "other"}) },
		"metadata.finalizers": func(u *unstructured.Unstructured) { u.SetFinalizers(nil) },
	} {
		err := call{resource: "apibindings", object: parse(t, binding), user: "alice"}.write(t, meddle)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, message)
	}
}

// TestUpdates checks that clients that replace an object from a file do not remove metadata that the server
// has set, and that v1alpha1 clients cannot write the status by annotations.
func TestUpdates(t *testing.T) {
	const applied = "apis.v1alpha2.kcp.io/status-applied-permission-claims"
	stored := parse(t, local)
	require.NoError(t, call{resource: "apibindings", object: stored, user: "alice"}.write(t, nil))
	stored.SetAnnotations(map[string]string{applied: "[]"})

	now := parse(t, local)
	now.SetAnnotations(map[string]string{"own": "x", applied: `[{"resource":"secrets","verbs":["get"],"selector":{"matchAll":true}}]`})
	require.NoError(t, call{resource: "apibindings", object: now, old: stored, user: "bob"}.write(t, nil), "an update must not require permission to bind")
	require.Equal(t, stored.GetLabels(), now.GetLabels())
	require.Equal(t, map[string]string{"own": "x", applied: "[]"}, now.GetAnnotations())

	empty := parse(t, strings.Replace(local, "spec: {", "spec: {permissionClaims: [], ", 1))
	require.NoError(t, call{resource: "apibindings", object: empty, old: parse(t, local), user: "bob"}.write(t, nil))
	require.Equal(t, parse(t, local).Object["spec"], empty.Object["spec"], "empty fields are not stored")

	fresh := parse(t, local)
	fresh.SetAnnotations(map[string]string{applied: "[]"})
	require.NoError(t, call{resource: "apibindings", object: fresh, old: parse(t, local), user: "bob"}.write(t, nil))
	require.Empty(t, fresh.GetAnnotations(), "an annotation without a status must be removed")

	err := call{resource: "apibindings", object: parse(t, local), old: stored, user: "bob"}.write(t, func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{applied: "[{}]"})
	})
	require.ErrorContains(t, err, "part of the status")

	bad := parse(t, nowhere)
	err = call{resource: "apibindings", object: bad, old: parse(t, binding), user: "bob"}.write(t, nil)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "spec.reference")
	status := parse(t, binding)
	status.Object["status"] = map[string]any{"phase": "Bound"}
	err = call{resource: "apibindings", subresource: "status", object: parse(t, binding), old: status, user: "bob"}.write(t, nil)
	require.ErrorContains(t, err, "status.phase")
}

func TestOtherResources(t *testing.T) {
	other := parse(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}")
	a := admission.NewAttributesRecord(other, nil, other.GroupVersionKind(), "", "c", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "", admission.Create, nil, false, nil)
	require.NoError(t, plugin(nil).Admit(t.Context(), a, nil))
	require.NoError(t, plugin(nil).Validate(t.Context(), a, nil))
	schemaless := parse(t, "{apiVersion: apis.kcp.io/v1alpha1, kind: APIResourceSchema, metadata: {name: x}}")
	err := call{resource: "apiresourceschemas", object: schemaless, user: "bob"}.write(t, nil)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
}

// TestTypes checks that an author of a workspace type needs permission for its default bindings, and cannot
// see which exports exist.
func TestTypes(t *testing.T) {
	wt := func(refs string) *unstructured.Unstructured {
		return parse(t, "{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: t}, spec: {defaultAPIBindings: ["+refs+"]}}")
	}
	const mine, others, nowhere, own = "{path: 'root:org:provider', export: e}", "{path: 'root:org:provider', export: f}", "{path: 'root:nowhere', export: e}", "{export: e}"
	denied := func(what string) string { return "no permission to bind to export " + what }
	for name, tc := range map[string]struct {
		refs, old string
		user      string
		groups    []string
		wants     string
	}{
		"none":                               {user: "bob"},
		"permitted":                          {user: "alice", refs: mine},
		"same logical cluster":               {user: "alice", refs: own},
		"denied":                             {user: "bob", refs: mine, wants: denied("root:org:provider:e")},
		"one of two denied":                  {user: "alice", refs: mine + ", " + others, wants: denied("root:org:provider:f")},
		"no such provider":                   {user: "alice", refs: nowhere, wants: denied("root:nowhere:e")},
		"denied in the same logical cluster": {user: "bob", refs: own, wants: denied("root:here:e")},
		"failed authorization":               {user: "unlucky", refs: mine, wants: "try again"},
		"administrator, missing export":      {user: "root", groups: []string{"system:kcp:admin"}, refs: nowhere},
		"system, missing export":             {user: "root", groups: []string{"system:masters"}, refs: nowhere + ", " + others},
		"unchanged":                          {user: "bob", refs: mine, old: mine},
		"added reference denied":             {user: "bob", refs: mine + ", " + others, old: mine, wants: denied("root:org:provider:f")},
		"invalid name of an export":          {user: "root", groups: []string{"system:kcp:admin"}, refs: mine + ", {path: 'root:org:provider', export: ../e}", wants: "spec.defaultAPIBindings[1].export"},
		"empty name":                         {user: "bob", refs: "{export: ''}", wants: "spec.defaultAPIBindings[0].export"},
		"unchanged invalid name":             {user: "alice", refs: "{export: E}, " + mine, old: "{export: E}"},
		"too many references":                {user: "alice", refs: strings.Repeat(mine+", ", 65), wants: "must have at most 64 items"},
		"fewer references above the limit":   {user: "alice", refs: strings.Repeat(mine+", ", 65), old: strings.Repeat(mine+", ", 66)},
	} {
		t.Run(name, func(t *testing.T) {
			c := call{resource: "workspacetypes", object: wt(strings.TrimSuffix(tc.refs, ", ")), user: tc.user, groups: tc.groups}
			if tc.old != "" {
				c.old = wt(strings.TrimSuffix(tc.old, ", "))
			}
			err := c.write(t, nil)
			if tc.wants == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.wants)
		})
	}
}
