// Package workspaceowner notes on every new Workspace who created it, so that
// its creator becomes the administrator of its logical cluster.
package workspaceowner

import (
	"context"
	"encoding/json"
	"fmt"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// annotation holds the creator as JSON.
const annotation = tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey

var workspaces = schema.GroupResource{Group: tenancyv1alpha1.SchemeGroupVersion.Group, Resource: "workspaces"}

// Plugin writes the annotation on creation and keeps it from being changed.
// Members of system:masters are exempt: they create workspaces in the name of
// others, or in nobody's.
type Plugin struct {
	*admission.Handler
}

var _ admission.MutationInterface = &Plugin{}

// New returns the plugin.
func New() *Plugin {
	return &Plugin{admission.NewHandler(admission.Create, admission.Update)}
}

// Admit implements admission.MutationInterface.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != workspaces || a.GetSubresource() != "" || a.GetObject() == nil {
		return nil
	}
	who := a.GetUserInfo()
	if who == nil || identity.MemberOf(ctx, who, user.SystemPrivilegedGroup) {
		return nil
	}
	owner, err := ownerFor(a, who)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	obj, err := meta.Accessor(a.GetObject())
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("reading the metadata: %w", err))
	}
	annotations := obj.GetAnnotations()
	if annotations[annotation] == owner {
		return nil
	}
	if owner == "" {
		delete(annotations, annotation)
	} else {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[annotation] = owner
	}
	obj.SetAnnotations(annotations)
	return nil
}

// ownerFor returns the annotation as it must be: that of the old object, or for
// a new one the creator.
func ownerFor(a admission.Attributes, who user.Info) (string, error) {
	if a.GetOperation() == admission.Update {
		old, err := meta.Accessor(a.GetOldObject())
		if err != nil {
			return "", fmt.Errorf("reading the metadata of the old object: %w", err)
		}
		return old.GetAnnotations()[annotation], nil
	}
	return OwnerOf(who)
}

// OwnerOf returns the annotation of a Workspace that who creates.
func OwnerOf(who user.Info) (string, error) {
	info := authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	for key, values := range who.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	raw, err := json.Marshal(info)
	if err != nil {
		return "", fmt.Errorf("encoding the owner: %w", err)
	}
	return string(raw), nil
}
