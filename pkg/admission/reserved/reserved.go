// Package reserved is the admission plugin that keeps what only the system, or
// only administrators, may say out of everybody else's hands: reserved
// annotations, labels and finalizers of any object, fields of Workspaces,
// WorkspaceTypes and LogicalClusters, the status of exports and bindings of APIs, where
// Shards are, the API groups of the system, and names of users in requests for
// certificates. The tables in it are the rules.
//
// It looks at what is about to be stored, after webhooks and policies, which
// must not say more than the user who writes may.
package reserved

import (
	"context"
	"slices"

	"github.com/kcp-dev/sdk/apis/core"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/pathannotation"
	"github.com/shardplane/shardplane/pkg/admission/workspaceowner"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Plugin implements admission.ValidationInterface.
type Plugin struct{ *admission.Handler }

var _ admission.ValidationInterface = &Plugin{}

// New returns the plugin.
func New() *Plugin {
	return &Plugin{admission.NewHandler(admission.Create, admission.Update, admission.Delete)}
}

// level says what the user may do in the logical cluster of ctx: what the system
// may, or an administrator, or, if it is beyond both, neither.
func level(ctx context.Context, u user.Info) who {
	switch {
	case identity.MemberOf(ctx, u, user.SystemPrivilegedGroup, request.GroupLogicalClusterAdmin, request.GroupShards):
		return system
	case identity.MemberOf(ctx, u, request.GroupAdmin):
		return administrators
	default:
		return administrators + 1
	}
}

// Validate implements admission.ValidationInterface.
func (*Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := checkPlace(ctx, a); err != nil {
		return err
	}
	if err := checkScope(a); err != nil {
		return err
	}
	if err := checkShard(ctx, a); err != nil {
		return err
	}
	as := level(ctx, a.GetUserInfo())
	if as == system || a.GetResource().GroupResource() == logicalClusters && a.GetOperation() != admission.Update && makes(ctx, a.GetUserInfo()) {
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

func checkMetadata(a admission.Attributes, as who) error {
	obj, ok := metadataOf(a.GetObject())
	if !ok {
		return nil // scales, tokens and the like
	}
	var oldAnnotations, oldLabels map[string]string
	var oldFinalizers []string
	if old, ok := metadataOf(a.GetOldObject()); ok {
		oldAnnotations, oldLabels, oldFinalizers = old.GetAnnotations(), old.GetLabels(), old.GetFinalizers()
	}
	newAnnotations := obj.GetAnnotations()
	if key, n, found := changed(annotations, oldAnnotations, newAnnotations, as, func(key string) bool {
		return isOwnName(a, key, newAnnotations) || key == core.LogicalClusterPathAnnotationKey && pathannotation.Applies(a.GetResource().GroupResource())
	}); found {
		return denied(a, "metadata.annotations", key, n)
	}
	if key, n, found := changed(labels, oldLabels, obj.GetLabels(), as, func(key string) bool { return isGiven(a, key) }); found {
		return denied(a, "metadata.labels", key, n)
	}
	now := obj.GetFinalizers()
	for _, lists := range [][2][]string{{now, oldFinalizers}, {oldFinalizers, now}} {
		for _, key := range lists[0] {
			if n, reserved := lookUp(finalizers, key); reserved && as > n.by && !slices.Contains(lists[1], key) && !isGiven(a, key) {
				return denied(a, "metadata.finalizers", key, n)
			}
		}
	}
	return nil
}

// changed returns a reserved key that as may not set but that differs, and is not
// excepted.
func changed(names []name, before, after map[string]string, as who, excepted func(key string) bool) (string, name, bool) {
	for key, value := range after {
		if old, had := before[key]; !had || old != value {
			if n, reserved := lookUp(names, key); reserved && as > n.by && !excepted(key) {
				return key, n, true
			}
		}
	}
	for key := range before {
		if _, has := after[key]; !has {
			if n, reserved := lookUp(names, key); reserved && as > n.by && !excepted(key) {
				return key, n, true
			}
		}
	}
	return "", name{}, false
}

// isGiven reports whether the plugin apikinds gives the key to new objects of the
// resource. It has looked that the values are its own.
func isGiven(a admission.Attributes, key string) bool {
	return a.GetOperation() == admission.Create && a.GetSubresource() == "" && slices.Contains(given[a.GetResource().GroupResource()], key)
}

// isOwnName reports whether the annotation names the creator of a new Workspace,
// as the plugin workspaceowner has it.
func isOwnName(a admission.Attributes, key string, after map[string]string) bool {
	if key != ownerAnnotation || a.GetOperation() != admission.Create || a.GetResource().GroupResource() != workspaces {
		return false
	}
	owner, err := workspaceowner.OwnerOf(a.GetUserInfo())
	return err == nil && after[key] == owner
}
