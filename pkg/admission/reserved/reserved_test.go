package reserved

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/request"
)

var (
	tenant  = &user.DefaultInfo{Name: "tenant", Groups: []string{"team"}}
	admin   = &user.DefaultInfo{Name: "kcp-admin", Groups: []string{request.GroupAdmin}}
	machine = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	scoped  = func(cluster string) user.Info {
		return &user.DefaultInfo{Name: "scoped", Groups: []string{user.SystemPrivilegedGroup, request.GroupAdmin}, Extra: map[string][]string{request.ExtraScopes: {"cluster:" + cluster}}}
	}
	external     = &user.DefaultInfo{Name: "server", Groups: []string{request.GroupExternalLogicalClusterAdmin}}
	bootstrapper = &user.DefaultInfo{Name: "boots", Groups: []string{request.GroupWorkspaceBootstrapper}}

	virtual = &user.DefaultInfo{Name: "virtual", Groups: []string{request.GroupLogicalClusterAdmin}}
)

func configMap(meta metav1.ObjectMeta) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "b"}}
}

func annotated(pairs ...string) *corev1.ConfigMap {
	set := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		set[pairs[i]] = pairs[i+1]
	}
	return configMap(metav1.ObjectMeta{Annotations: set})
}

func labelled(key, value string) *corev1.ConfigMap {
	return configMap(metav1.ObjectMeta{Labels: map[string]string{key: value}})
}

func finalized(keys ...string) *corev1.ConfigMap {
	return configMap(metav1.ObjectMeta{Finalizers: keys})
}

func owned(obj runtime.Object) runtime.Object {
	with := obj.DeepCopyObject()
	with.(metav1.Object).SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "none"}})
	return with
}

func attributes(resource schema.GroupResource, subresource string, obj, old runtime.Object, as user.Info) admission.Attributes {
	operation := admission.Create
	switch {
	case obj == nil:
		operation = admission.Delete
	case old != nil:
		operation = admission.Update
	}
	return admission.NewAttributesRecord(obj, old, schema.GroupVersionKind{}, "", "x", resource.WithVersion("v1"), subresource, operation, nil, false, as)
}

func TestMetadata(t *testing.T) {
	const shard, inactive = "core.kcp.io/shard", "core.kcp.io/inactive"
	for name, test := range map[string]struct {
		obj, old runtime.Object
		as       user.Info
		denied   string
	}{
		"no reserved metadata":                {obj: annotated("example.com/a", "b"), as: tenant},
		"copied from elsewhere":               {obj: annotated("kcp.io/cluster", "other"), as: tenant},
		"similar key":                         {obj: annotated("mine.core.kcp.io/shard", "x"), as: tenant},
		"path annotation":                     {obj: annotated("kcp.io/path", "x"), as: tenant},
		"path annotation removed":             {obj: annotated(), old: annotated("kcp.io/path", "x"), as: tenant},
		"deletion annotation":                 {obj: annotated("cache.shardplane.io/deleting", "x"), as: admin, denied: "only the system"},
		"set":                                 {obj: annotated(shard, "root:x"), as: tenant, denied: "metadata.annotations[core.kcp.io/shard] is reserved: only the system may"},
		"set by an administrator":             {obj: annotated(shard, "root:x"), as: admin, denied: "only the system"},
		"set by the system":                   {obj: annotated(shard, "root:x"), as: machine},
		"set by the system, scoped here":      {obj: annotated(shard, "root:x"), as: scoped("here")},
		"set by the system, scoped elsewhere": {obj: annotated(shard, "root:x"), as: scoped("elsewhere"), denied: "only the system"},
		"inactive, by an admin elsewhere":     {obj: annotated(inactive, "true"), as: scoped("elsewhere"), denied: "only administrators"},
		"set by a virtual workspace":          {obj: annotated(shard, "root:x"), as: virtual},
		"set without a user":                  {obj: annotated(shard, "root:x"), as: nil, denied: "only the system"},
		"kept":                                {obj: annotated(shard, "root:x", "a", "c"), old: annotated(shard, "root:x"), as: tenant},
		"changed":                             {obj: annotated(shard, "root:y"), old: annotated(shard, "root:x"), as: tenant, denied: shard},
		"removed":                             {obj: annotated(), old: annotated(shard, "root:x"), as: tenant, denied: shard},
		"prefix":                              {obj: annotated("internal.tenancy.kcp.io/shard", "x"), as: tenant, denied: "internal.tenancy.kcp.io/shard"},
		"owner of another kind":               {obj: annotated(ownerAnnotation, "{}"), as: tenant, denied: ownerAnnotation},
		"for administrators":                  {obj: annotated(inactive, "true"), as: tenant, denied: "only administrators (group system:kcp:admin) may"},
		"for administrators, by an admin":     {obj: annotated(inactive, "true"), as: admin},
		"for administrators, by system":       {obj: annotated(inactive, "true"), as: machine},
		"label":                               {obj: labelled("tenancy.kcp.io/phase", "Ready"), as: tenant, denied: "metadata.labels[tenancy.kcp.io/phase]"},
		"label with a prefix":                 {obj: labelled("initializer.internal.kcp.io/abc", "x"), as: admin, denied: "only the system"},
		"label of a claim":                    {obj: labelled("claimed.internal.apis.kcp.io/abc", "x"), as: tenant, denied: "claimed.internal.apis.kcp.io/abc"},
		"label of the owner's shard":          {obj: labelled("internal.shardplane.io/owner-shard", "root"), as: admin, denied: "only the system"},
		"label of the target":                 {obj: labelled("internal.shardplane.io/target", "root"), as: admin, denied: "only the system"},
		"placement of a target":               {obj: annotated("internal.tenancy.kcp.io/placement", "{}"), as: admin, denied: "only the system"},
		"label removed":                       {obj: annotated(), old: labelled("tenancy.kcp.io/phase", "Ready"), as: tenant, denied: "tenancy.kcp.io/phase"},
		"finalizer":                           {obj: finalized("core.kcp.io/logicalcluster"), as: tenant, denied: "metadata.finalizers[core.kcp.io/logicalcluster]"},
		"finalizer removed":                   {obj: finalized("mine.example.com/x"), old: finalized("core.kcp.io/logicalcluster"), as: admin, denied: "core.kcp.io/logicalcluster"},
		"finalizer kept, another added":       {obj: finalized("core.kcp.io/logicalcluster", "mine.example.com/x"), old: finalized("core.kcp.io/logicalcluster"), as: tenant},
		"finalizer removed by system":         {obj: finalized(), old: finalized("core.kcp.io/logicalcluster"), as: machine},
		"finalizer of another group":          {obj: finalized("example.com/logicalcluster"), as: tenant},
		"replicated, by a tenant":             {obj: labelled("internal.kcp.io/replicate", "x"), as: tenant, denied: "administrators"},
		"required groups, by a tenant":        {obj: annotated("authorization.kcp.io/required-groups", "x"), as: tenant, denied: "administrators"},
		"required groups, by an admin":        {obj: annotated("authorization.kcp.io/required-groups", "x"), as: admin},
		"original version, by an admin":       {obj: annotated("cache.kcp.io/original-resource-version", "1"), as: admin, denied: "only the system"},
		"bound definition, by an admin":       {obj: annotated("apis.kcp.io/bound-crd", ""), as: admin, denied: "only the system"},
		"is-mount is for users to set":        {obj: annotated("experimental.tenancy.kcp.io/is-mount", "true"), as: tenant},
		"lifecycle of default api binds":      {obj: annotated("experimental.tenancy.kcp.io/default-api-binding-lifecycle", "x"), as: tenant},
	} {
		t.Run(name, func(t *testing.T) {
			a := attributes(corev1.Resource("configmaps"), "", test.obj, test.old, test.as)
			verdict(t, NewReserved().Validate(request.WithClusterName(t.Context(), "here"), a, nil), test.denied)
		})
	}
}

func verdict(t *testing.T, err error, denied string) {
	t.Helper()
	if denied == "" {
		require.NoError(t, err)
		return
	}
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, denied)
}

func object(fields map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields}
}

func TestFields(t *testing.T) {
	spec := func(fields map[string]any) *unstructured.Unstructured { return object(map[string]any{"spec": fields}) }
	labels := func(key, value string) *unstructured.Unstructured {
		return spec(map[string]any{"additionalWorkspaceLabels": map[string]any{key: value}})
	}
	withFinalizers := func(keys ...string) *unstructured.Unstructured {
		lc := spec(nil)
		lc.SetFinalizers(keys)
		return lc
	}
	pathed := spec(nil)
	pathed.SetAnnotations(map[string]string{"kcp.io/path": "root:x"})
	ready := object(map[string]any{"spec": map[string]any{"cluster": "c"}, "status": map[string]any{"phase": "Ready"}})
	for name, test := range map[string]struct {
		resource    schema.GroupResource
		subresource string
		obj, old    runtime.Object
		as          user.Info
		denied      string
	}{
		"workspace":                                        {workspaces, "", spec(map[string]any{"type": map[string]any{"name": "team"}}), nil, tenant, ""},
		"workspace with a cluster":                         {workspaces, "", spec(map[string]any{"cluster": "stolen"}), nil, tenant, "spec.cluster is set by the system"},
		"workspace with a URL":                             {workspaces, "", spec(map[string]any{"URL": "https://x"}), nil, admin, "spec.URL is set by the system"},
		"workspace, by the system":                         {workspaces, "", spec(map[string]any{"cluster": "c"}), nil, machine, ""},
		"workspace is moved":                               {workspaces, "", spec(map[string]any{"cluster": "d"}), ready, tenant, "spec.cluster"},
		"workspace loses its URL":                          {workspaces, "", spec(nil), spec(map[string]any{"URL": "https://x"}), tenant, "spec.URL"},
		"workspace unchanged":                              {workspaces, "", ready, ready, tenant, ""},
		"workspace is deleted":                             {workspaces, "", nil, ready, tenant, ""},
		"workspace status":                                 {workspaces, "status", spec(nil), ready, tenant, "only the system may write the status"},
		"workspace status unchanged":                       {workspaces, "status", ready, ready, tenant, ""},
		"logical cluster":                                  {logicalClusters, "", spec(nil), nil, tenant, "create a Workspace"},
		"logical cluster by an administrator":              {logicalClusters, "", spec(nil), nil, admin, "create a Workspace"},
		"logical cluster by the virtual system":            {logicalClusters, "", spec(nil), nil, virtual, ""},
		"logical cluster by another server":                {logicalClusters, "", pathed, nil, external, ""},
		"logical cluster by the bootstrapper":              {logicalClusters, "", pathed, nil, bootstrapper, ""},
		"path is changed by another server":                {logicalClusters, "", pathed, spec(nil), external, "kcp.io/path"},
		"logical cluster is deleted by another server":     {logicalClusters, "", nil, spec(nil), external, ""},
		"logical cluster by system":                        {logicalClusters, "", spec(nil), nil, machine, ""},
		"logical cluster is changed":                       {logicalClusters, "", spec(map[string]any{"directlyDeletable": true}), spec(nil), tenant, "spec is set by the system"},
		"logical cluster is changed by an admin":           {logicalClusters, "", spec(map[string]any{"directlyDeletable": true}), spec(nil), admin, ""},
		"creator is changed":                               {logicalClusters, "", spec(map[string]any{"createdBy": map[string]any{"username": "me"}}), spec(nil), admin, "spec.createdBy is set by the system"},
		"owner is removed":                                 {logicalClusters, "", spec(nil), spec(map[string]any{"owner": map[string]any{"name": "x"}}), admin, "spec.owner is set by the system"},
		"initializers are changed":                         {logicalClusters, "", spec(map[string]any{"initializers": []any{"a:b"}}), spec(nil), external, "spec.initializers is set by the system"},
		"terminators are changed":                          {logicalClusters, "", spec(map[string]any{"terminators": []any{"a:b"}}), spec(nil), admin, "spec.terminators is set by the system"},
		"logical cluster is deleted":                       {logicalClusters, "", nil, spec(nil), tenant, "directlyDeletable is not set"},
		"logical cluster is directly deletable":            {logicalClusters, "", nil, spec(map[string]any{"directlyDeletable": true}), tenant, ""},
		"logical cluster status":                           {logicalClusters, "status", ready, spec(nil), tenant, "only the system may write the status"},
		"finalizer is added":                               {logicalClusters, "", withFinalizers("example.com/mine"), withFinalizers(), tenant, "delay the deletion of the Workspace"},
		"finalizer is added by an administrator":           {logicalClusters, "", withFinalizers("example.com/mine"), withFinalizers(), admin, ""},
		"finalizer is removed":                             {logicalClusters, "", withFinalizers("a.example.com/x"), withFinalizers("a.example.com/x", "b.example.com/x"), tenant, ""},
		"type with labels":                                 {workspaceTypes, "", labels("team", "blue"), nil, tenant, ""},
		"type with a label of the system":                  {workspaceTypes, "", labels("tenancy.kcp.io/phase", "Ready"), nil, admin, "spec.additionalWorkspaceLabels[tenancy.kcp.io/phase] is reserved"},
		"type with a label of administrators":              {workspaceTypes, "", labels("internal.kcp.io/replicate", "true"), nil, tenant, "only administrators"},
		"type with a label of administrators, by an admin": {workspaceTypes, "", labels("internal.kcp.io/replicate", "true"), nil, admin, ""},
		"type with an unchanged label":                     {workspaceTypes, "", labels("tenancy.kcp.io/phase", "Ready"), labels("tenancy.kcp.io/phase", "Ready"), tenant, ""},
		"type with a changed label":                        {workspaceTypes, "", labels("tenancy.kcp.io/phase", "Ready"), labels("tenancy.kcp.io/phase", "Initializing"), tenant, "is reserved"},
		"type is deleted":                                  {workspaceTypes, "", nil, labels("tenancy.kcp.io/phase", "Ready"), tenant, ""},
		"workspaces of another group":                      {schema.GroupResource{Group: "example.com", Resource: "workspaces"}, "", spec(map[string]any{"cluster": "x"}), nil, tenant, ""},
	} {
		t.Run(name, func(t *testing.T) {
			verdict(t, NewReserved().Validate(t.Context(), attributes(test.resource, test.subresource, test.obj, test.old, test.as), nil), test.denied)
		})
	}
}

// TestBindingsOfRoot checks that the system's bindings in root cannot be deleted, also not by an owner
// reference.
func TestBindingsOfRoot(t *testing.T) {
	to := func(path, export string) runtime.Object {
		return object(map[string]any{"spec": map[string]any{"reference": map[string]any{"export": map[string]any{"path": path, "name": export}}}})
	}
	for _, test := range []struct {
		cluster logicalcluster.Name
		binding runtime.Object
		denied  string
	}{
		{"root", to("root", "tenancy.kcp.io"), "servers need the binding of tenancy.kcp.io"},
		{"root", to("", "shards.core.kcp.io"), "servers need the binding of shards.core.kcp.io"},
		{"root", to("root", "widgets"), ""},
		{"root", to("root:org", "tenancy.kcp.io"), ""},
		{"tenant", to("root", "tenancy.kcp.io"), ""},
	} {
		for as, denied := range map[user.Info]string{tenant: test.denied, admin: test.denied, machine: ""} {
			ctx := request.WithClusterName(t.Context(), test.cluster)
			verdict(t, NewReserved().Validate(ctx, attributes(bindings, "", nil, test.binding, as), nil), denied)
			verdict(t, NewReserved().Validate(ctx, attributes(bindings, "", owned(test.binding), test.binding, as), nil), denied)
			verdict(t, NewReserved().Validate(ctx, attributes(bindings, "", test.binding, test.binding, as), nil), "")
		}
	}
}

// TestReservedObjects checks objects that no user can create, not even the system.
func TestReservedObjects(t *testing.T) {
	crd := func(group string) *apiextensions.CustomResourceDefinition {
		return &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{Group: group}}
	}
	for _, test := range []struct {
		resource schema.GroupResource
		cluster  logicalcluster.Name
		obj, old runtime.Object
		denied   string
	}{
		{shards, "root", object(map[string]any{}), nil, ""},
		{shards, "tenant", object(map[string]any{}), nil, "logical cluster root"},
		{shards, "tenant", object(map[string]any{}), object(map[string]any{}), ""},
		{shards, "tenant", nil, object(map[string]any{}), ""},
		{definitions, "tenant", crd("example.com"), nil, ""},
		{definitions, "tenant", crd("mine.kcp.io"), nil, ""},
		{definitions, "tenant", crd("tenancy.kcp.io"), nil, "spec.group tenancy.kcp.io is reserved for system APIs"},
		{definitions, "root", crd("migration.kcp.io"), nil, "spec.group migration.kcp.io is reserved for system APIs"},
		{definitions, "tenant", crd("internal.shardplane.io"), nil, "spec.group internal.shardplane.io is reserved for system APIs"},
		{definitions, "tenant", crd("apis.kcp.io"), crd("apis.kcp.io"), ""},
	} {
		for _, as := range []user.Info{tenant, admin, machine} {
			verdict(t, NewReserved().Validate(request.WithClusterName(t.Context(), test.cluster), attributes(test.resource, "", test.obj, test.old, as), nil), test.denied)
		}
	}
}

func TestOwner(t *testing.T) {
	owner, err := OwnerOf(tenant)
	require.NoError(t, err)
	for value, denied := range map[string]string{owner: "", `{"username":"boss"}`: ownerAnnotation} {
		ws := object(map[string]any{})
		ws.SetAnnotations(map[string]string{ownerAnnotation: value})
		verdict(t, NewReserved().Validate(t.Context(), attributes(workspaces, "", ws, nil, tenant), nil), denied)
	}
}

// TestOwnerDoesNotHideReservedAnnotations checks that a permitted annotation does not hide a reserved one, in any order.
func TestOwnerDoesNotHideReservedAnnotations(t *testing.T) {
	owner, err := OwnerOf(tenant)
	require.NoError(t, err)
	for range 50 {
		ws := object(map[string]any{})
		ws.SetAnnotations(map[string]string{ownerAnnotation: owner, "internal.tenancy.kcp.io/cluster": "stolen"})
		verdict(t, NewReserved().Validate(t.Context(), attributes(workspaces, "", ws, nil, tenant), nil), "internal.tenancy.kcp.io/cluster")
	}
}

func TestReservedMetadataByResource(t *testing.T) {
	const label, finalizer = "internal.apis.kcp.io/export", "apis.kcp.io/apibinding-finalizer"
	with := func(finalizers ...string) *unstructured.Unstructured {
		u := object(map[string]any{})
		u.SetLabels(map[string]string{label: "hash"})
		u.SetFinalizers(finalizers)
		return u
	}
	none := object(map[string]any{})
	for range 20 { // maps have no order
		verdict(t, NewReserved().Validate(t.Context(), attributes(bindings, "", with(finalizer), nil, tenant), nil), "")
		verdict(t, NewReserved().Validate(t.Context(), attributes(exports, "", with(), nil, tenant), nil), label)
		verdict(t, NewReserved().Validate(t.Context(), attributes(workspaceTypes, "", with(finalizer), nil, tenant), nil), "reserved")
		verdict(t, NewReserved().Validate(t.Context(), attributes(bindings, "", with(), with(finalizer), tenant), nil), finalizer)
		verdict(t, NewReserved().Validate(t.Context(), attributes(bindings, "", none, with(), tenant), nil), label)
		verdict(t, NewReserved().Validate(t.Context(), attributes(bindings, "", with(finalizer), none, tenant), nil), "reserved")
	}
}

func TestStatusOfAPIKinds(t *testing.T) {
	status := func(hash string) *unstructured.Unstructured {
		return object(map[string]any{"status": map[string]any{"identityHash": hash}})
	}
	for _, resource := range []schema.GroupResource{exports, bindings, endpointSlices} {
		for _, as := range []user.Info{tenant, admin} {
			verdict(t, NewReserved().Validate(t.Context(), attributes(resource, "status", status("a"), status("b"), as), nil), "only the system may write the status")
			verdict(t, NewReserved().Validate(t.Context(), attributes(resource, "status", status("a"), status("a"), as), nil), "")
		}
		verdict(t, NewReserved().Validate(t.Context(), attributes(resource, "status", status("a"), status("b"), machine), nil), "")
	}
}

func TestGuard(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*unstructured.Unstructured)
		as     user.Info
		denied string
	}{
		"nothing configured": {as: machine},
		"unreserved label":   {change: func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }, as: machine},
		"annotation": {change: func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{"internal.tenancy.kcp.io/cluster": "x"})
		}, as: machine, denied: "reserved"},
		"finalizer": {change: func(u *unstructured.Unstructured) { u.SetFinalizers(nil) }, as: machine, denied: "reserved"},
		"field": {change: func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(u.Object, "stolen", "spec", "cluster")
		}, as: machine, denied: "reserved"},
		"request of a tenant": {change: func(u *unstructured.Unstructured) { u.SetFinalizers(nil) }, as: tenant},
	} {
		t.Run(name, func(t *testing.T) {
			ws := object(map[string]any{"spec": map[string]any{"cluster": "mine"}})
			ws.SetFinalizers([]string{"core.kcp.io/logicalcluster"})
			guarded := Guard(percluster.Mutator{Admits: func(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
				if test.change != nil {
					test.change(a.GetObject().(*unstructured.Unstructured))
				}
				return nil
			}})
			verdict(t, guarded.Admit(t.Context(), attributes(workspaces, "", ws, nil, test.as), nil), test.denied)
		})
	}
}
