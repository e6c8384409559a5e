// Package reserved contains the admission plugins for metadata and fields that only the system or administrators may
// set. The tables in this package are the rules.
//
// WorkspaceOwner and PathAnnotation set annotations. Initialization restricts initializers and terminators. Reserved
// protects reserved annotations, labels and finalizers. It also protects fields of Workspaces, WorkspaceTypes and
// LogicalClusters, the status of exports and bindings, the logical cluster of Shards, API groups of the system, and
// user names in CertificateSigningRequests.
//
// Reserved checks the object after webhooks and policies, which must not set more than the user who sends the request.
package reserved

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	"github.com/kcp-dev/sdk/apis/core"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// NewReserved returns the plugin that protects reserved names and fields.
func NewReserved() percluster.Plugin {
	return percluster.Plugin{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete), Admits: admit, Validates: validate}
}

// level returns the privileges of a user in the logical cluster of ctx; administrators+1 means none.
func level(ctx context.Context, u user.Info) privilege {
	switch {
	case identity.MemberOf(ctx, u, user.SystemPrivilegedGroup, request.GroupLogicalClusterAdmin, request.GroupShards):
		return system
	case identity.MemberOf(ctx, u, request.GroupAdmin):
		return administrators
	default:
		return administrators + 1
	}
}

func validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := cmp.Or(checkCreate(ctx, a), checkScope(a), checkShard(ctx, a)); err != nil {
		return err
	}
	as := level(ctx, a.GetUserInfo())
	if as == system || a.GetResource().GroupResource() == logicalClusters && a.GetOperation() != admission.Update && mayCreateLogicalClusters(ctx, a.GetUserInfo()) {
		return nil
	}
	if a.GetOperation() != admission.Delete {
		if err := checkMetadata(a, as); err != nil {
			return err
		}
	}
	switch a.GetResource().GroupResource() {
	case workspaces:
		return checkWorkspace(a)
	case workspaceTypes:
		return checkWorkspaceType(a, as)
	case logicalClusters:
		return checkLogicalCluster(ctx, a, as)
	case signingRequests:
		return checkSigningRequest(a)
	case exports, bindings, endpointSlices, cachedResources, clusterCachedResources, cachedSlices, clusterCachedSlices:
		if a.GetSubresource() == "status" {
			return unchangedStatus(a)
		}
		if a.GetResource().Resource == bindings.Resource {
			return checkBinding(ctx, a)
		}
		return nil
	default:
		return nil
	}
}

func checkMetadata(a admission.Attributes, as privilege) error {
	obj, ok := metadataOf(a.GetObject())
	if !ok {
		return nil // e.g. scales and tokens
	}
	var oldAnnotations, oldLabels map[string]string
	var oldFinalizers []string
	if old, ok := metadataOf(a.GetOldObject()); ok {
		oldAnnotations, oldLabels, oldFinalizers = old.GetAnnotations(), old.GetLabels(), old.GetFinalizers()
	}
	newAnnotations := obj.GetAnnotations()
	if key, n, found := changed(annotations, oldAnnotations, newAnnotations, as, func(key string) bool {
		return isOwnName(a, key, newAnnotations) || key == core.LogicalClusterPathAnnotationKey && a.GetResource().GroupResource() != logicalClusters
	}); found {
		return denied(a, "metadata.annotations", key, n)
	}
	if key, n, found := changed(labels, oldLabels, obj.GetLabels(), as, func(key string) bool { return isSetByAPIKinds(a, key) }); found {
		return denied(a, "metadata.labels", key, n)
	}
	now := obj.GetFinalizers()
	for _, lists := range [][2][]string{{now, oldFinalizers}, {oldFinalizers, now}} {
		for _, key := range lists[0] {
			if n, reserved := lookUp(finalizers, key); reserved && as > n.by && !slices.Contains(lists[1], key) && !isSetByAPIKinds(a, key) {
				return denied(a, "metadata.finalizers", key, n)
			}
		}
	}
	return nil
}

// changed returns a reserved key whose value differs, unless as may set it or it is excepted.
func changed(names []name, before, after map[string]string, as privilege, excepted func(key string) bool) (string, name, bool) {
	for _, pair := range [][2]map[string]string{{after, before}, {before, after}} {
		for key, value := range pair[0] {
			if other, ok := pair[1][key]; !ok || other != value {
				if n, reserved := lookUp(names, key); reserved && as > n.by && !excepted(key) {
					return key, n, true
				}
			}
		}
	}
	return "", name{}, false
}

// isSetByAPIKinds reports whether the plugin apikinds, which has checked the value, sets the key on new bindings.
func isSetByAPIKinds(a admission.Attributes, key string) bool {
	return a.GetOperation() == admission.Create && a.GetSubresource() == "" && a.GetResource().GroupResource() == bindings &&
		(key == apis.ExportLabel || key == apis.BindingFinalizer)
}

// isOwnName reports whether the annotation names the creator of a new Workspace, as WorkspaceOwner sets it.
func isOwnName(a admission.Attributes, key string, after map[string]string) bool {
	if key != ownerAnnotation || a.GetOperation() != admission.Create || a.GetResource().GroupResource() != workspaces {
		return false
	}
	owner, err := OwnerOf(a.GetUserInfo())
	return err == nil && after[key] == owner
}

// admit restores the replication annotation, which servers set, if a client replaces an object from a file.
func admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Update || level(ctx, a.GetUserInfo()) <= administrators {
		return nil
	}
	obj, ok := metadataOf(a.GetObject())
	old, had := metadataOf(a.GetOldObject())
	if !ok || !had {
		return nil
	}
	value := old.GetAnnotations()[core.ReplicateAnnotationKey]
	if _, has := obj.GetAnnotations()[core.ReplicateAnnotationKey]; !has && value != "" {
		setAnnotation(obj, core.ReplicateAnnotationKey, value)
	}
	return nil
}

var errReservedChanged = errors.New("a mutating webhook or policy changed reserved metadata or fields in a request of the system: it must not change them")

// Guard prevents a plugin with webhooks or policies of users from changing reserved metadata and fields in writes of
// the system. For other writes, Reserved rejects such changes afterwards, but it trusts the system.
func Guard(next percluster.Mutator) percluster.Mutator {
	return percluster.Mutator{Handler: next.Handler, Admits: func(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
		if level(ctx, a.GetUserInfo()) != system {
			return next.Admit(ctx, a, o)
		}
		before := recordOf(a)
		if err := next.Admit(ctx, a, o); err != nil {
			return err
		}
		if !reflect.DeepEqual(before, recordOf(a)) {
			return admission.NewForbidden(a, errReservedChanged)
		}
		return nil
	}}
}

// recordOf returns the reserved metadata and fields of an object, to be compared.
func recordOf(a admission.Attributes) []any {
	obj, ok := metadataOf(a.GetObject())
	if !ok {
		return nil
	}
	r := []any{reservedIn(annotations, obj.GetAnnotations()), reservedIn(labels, obj.GetLabels())}
	for _, key := range obj.GetFinalizers() {
		if _, reserved := lookUp(finalizers, key); reserved {
			r = append(r, key)
		}
	}
	if a.GetResource().GroupResource() == workspaces {
		for _, path := range append(slices.Clone(workspaceFields), []string{"status"}) {
			value, _ := field(a.GetObject(), path...)
			r = append(r, runtime.DeepCopyJSONValue(value)) // the plugin may change the original
		}
	}
	return r
}

func reservedIn(names []name, of map[string]string) map[string]string {
	out := maps.Clone(of)
	maps.DeleteFunc(out, func(key, _ string) bool {
		_, reserved := lookUp(names, key)
		return !reserved
	})
	if len(out) == 0 {
		return nil
	}
	return out
}
