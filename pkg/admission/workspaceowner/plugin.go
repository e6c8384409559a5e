// Package workspaceowner is the admission plugin that records the creator of a Workspace, who becomes the
// administrator of its logical cluster.
package workspaceowner

import (
	"context"
	"encoding/json"
	"fmt"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// annotation contains the creator as JSON.
const annotation = tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey

// Plugin sets the annotation of new Workspaces and protects it. Members of system:masters are exempt, because they
// create workspaces on behalf of other users or without an owner.
type Plugin struct{ *admission.Handler }

var _ admission.MutationInterface = &Plugin{}

// NewWorkspaceOwner returns the plugin.
func NewWorkspaceOwner() *Plugin {
	return &Plugin{admission.NewHandler(admission.Create, admission.Update)}
}

// Admit implements admission.MutationInterface.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != tenancyv1alpha1.Resource("workspaces") || a.GetSubresource() != "" || a.GetObject() == nil {
		return nil
	}
	u := a.GetUserInfo()
	if u == nil || identity.MemberOf(ctx, u, user.SystemPrivilegedGroup) {
		return nil
	}
	owner, err := ownerFor(a, u)
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

// ownerFor returns the required value: that of the old object, or the creator of a new one.
func ownerFor(a admission.Attributes, u user.Info) (string, error) {
	if a.GetOperation() == admission.Update {
		old, err := meta.Accessor(a.GetOldObject())
		if err != nil {
			return "", fmt.Errorf("reading the metadata of the old object: %w", err)
		}
		return old.GetAnnotations()[annotation], nil
	}
	return OwnerOf(u)
}

// OwnerOf returns the annotation value for Workspaces that u creates.
func OwnerOf(u user.Info) (string, error) {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for key, values := range u.GetExtra() {
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
