package reserved

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/sdk/apis/apis"
	"github.com/kcp-dev/sdk/apis/cache"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/kcp-dev/sdk/apis/migration"
	"github.com/kcp-dev/sdk/apis/tenancy"
	"github.com/kcp-dev/sdk/apis/topology"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/config"
	apirules "github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

var (
	errStatus  = errors.New("the status is what the system has observed: only the system may write it")
	errForeign = errors.New("a shard writes its own Shard in root, and its own Lease there, and nothing else on another shard")
	errPlace   = errors.New("shards are registered in the logical cluster root, and nowhere else")
	errScope   = fmt.Errorf("metadata.annotations[%s]: every region has to know of every shard, so that a Shard is meant for the whole installation: leave the annotation out", request.ScopeAnnotation)
)

// reviews are the API groups whose objects are questions, which nobody stores.
var reviews = []string{authorizationv1.GroupName, authenticationv1.GroupName}

// apiGroups are the API groups of the system: those of the wire contract, and that of what
// shards keep for themselves. Nobody defines kinds in them.
var apiGroups = []string{apirules.InternalGroup, apis.GroupName, cache.GroupName, core.GroupName, migration.GroupName, tenancy.GroupName, topology.GroupName}

// workspaceFields are the fields of a Workspace that only the system sets.
var workspaceFields = [][]string{{"spec", "cluster"}, {"spec", "URL"}}

// checkPlace denies what nobody can have where it is: Shards outside of root, which
// servers would take for others of the installation, and definitions of kinds in
// the groups of the system.
func checkPlace(ctx context.Context, a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return nil
	}
	switch a.GetResource().GroupResource() {
	case shards:
		if cluster, _ := request.ClusterFrom(ctx); cluster.Name != core.RootCluster {
			return admission.NewForbidden(a, errPlace)
		}
	case definitions:
		if crd, ok := a.GetObject().(*apiextensions.CustomResourceDefinition); ok && slices.Contains(apiGroups, crd.Spec.Group) {
			return admission.NewForbidden(a, fmt.Errorf("spec.group %s is the system's, which defines all its kinds itself: choose a group of your own", crd.Spec.Group))
		}
	default:
	}
	return nil
}

// checkScope denies to keep a Shard in its region. Those that say so already can be written.
func checkScope(a admission.Attributes) error {
	if a.GetResource().GroupResource() != shards || a.GetOperation() == admission.Delete {
		return nil
	}
	scope := func(of runtime.Object) string {
		if obj, ok := metadataOf(of); ok {
			return obj.GetAnnotations()[request.ScopeAnnotation]
		}
		return ""
	}
	switch now := scope(a.GetObject()); now {
	case "", request.ScopeInstallation, scope(a.GetOldObject()):
		return nil
	default:
		return admission.NewForbidden(a, errScope)
	}
}

// checkShard denies a shard to write on another one but what is its own: its Shard, and the
// Lease by which it is known to live.
func checkShard(ctx context.Context, a admission.Attributes) error {
	shard, ok := identity.ShardOf(ctx, a.GetUserInfo())
	if !ok || slices.Contains(reviews, a.GetResource().Group) {
		return nil
	}
	name := a.GetName()
	if obj, ok := metadataOf(a.GetObject()); ok && name == "" {
		name = obj.GetName()
	}
	switch a.GetResource().GroupResource() {
	case shards:
		ok = name == shard
	case coordinationv1.Resource("leases"):
		ok = a.GetNamespace() == shardload.LeaseNamespace && name == shardload.LeaseName(shard)
	default:
		ok = false
	}
	if ok && shard != "" {
		return nil
	}
	return admission.NewForbidden(a, errForeign)
}

// deletes reports whether a write deletes an object, or changes its owner references: with an owner
// that does not exist, the garbage collector deletes the object with the rights of the system.
func deletes(a admission.Attributes) bool {
	now, ok := metadataOf(a.GetObject())
	before, existed := metadataOf(a.GetOldObject())
	return a.GetOperation() == admission.Delete ||
		a.GetOperation() == admission.Update && ok && existed && !equality.Semantic.DeepEqual(now.GetOwnerReferences(), before.GetOwnerReferences())
}

// checkBinding denies to delete what root binds of the system: the servers have their own
// objects there, which would go with the binding.
func checkBinding(ctx context.Context, a admission.Attributes) error {
	if cluster, _ := request.ClusterFrom(ctx); !deletes(a) || cluster.Name != core.RootCluster {
		return nil
	}
	path, _ := field(a.GetOldObject(), "spec", "reference", "export", "path")
	name, _ := field(a.GetOldObject(), "spec", "reference", "export", "name")
	export, _ := name.(string)
	if path != nil && path != "" && path != core.RootCluster.String() || !config.IsRootExport(export) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("servers need what root binds of %s, and all workspaces of root would go with it", export))
}

// checkWorkspaceType denies a type that has Workspaces labelled with what whoever
// writes it may not label them with.
func checkWorkspaceType(a admission.Attributes, as who) error {
	if a.GetOperation() == admission.Delete {
		return nil
	}
	const spec, additional = "spec", "additionalWorkspaceLabels"
	now, _ := field(a.GetObject(), spec, additional)
	before, _ := field(a.GetOldObject(), spec, additional)
	values, _ := now.(map[string]any)
	old, _ := before.(map[string]any)
	for key, value := range values {
		if n, reserved := lookUp(labels, key); reserved && as > n.by && (old == nil || old[key] != value) {
			return denied(a, spec+"."+additional, key, n)
		}
	}
	return nil
}

func checkWorkspace(a admission.Attributes) error {
	switch {
	case a.GetOperation() == admission.Delete:
		return nil
	case a.GetSubresource() == "status":
		return unchangedStatus(a)
	default:
		return unchanged(a, workspaceFields)
	}
}

func unchangedStatus(a admission.Attributes) error {
	now, _ := field(a.GetObject(), "status")
	before, _ := field(a.GetOldObject(), "status")
	if equality.Semantic.DeepEqual(now, before) {
		return nil
	}
	return admission.NewForbidden(a, errStatus)
}

// unchanged denies a write that sets, changes or removes one of the fields.
func unchanged(a admission.Attributes, fields [][]string) error {
	for _, path := range fields {
		now, _ := field(a.GetObject(), path...)
		before, _ := field(a.GetOldObject(), path...)
		if !equality.Semantic.DeepEqual(now, before) {
			return admission.NewForbidden(a, fmt.Errorf("%s is set by the system: leave it as it is", strings.Join(path, ".")))
		}
	}
	return nil
}

// field returns a field of a custom resource, which both kinds are.
func field(obj runtime.Object, path ...string) (any, bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u == nil {
		return nil, false
	}
	value, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	return value, found && err == nil
}
