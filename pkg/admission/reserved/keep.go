package reserved

import (
	"context"

	"github.com/kcp-dev/sdk/apis/core"
	"k8s.io/apiserver/pkg/admission"
)

var _ admission.MutationInterface = &Plugin{}

// Admit implements admission.MutationInterface. The servers mark what is replicated,
// objects of tenants among it: who replaces an object by what they have in a file, which
// says nothing of the mark, keeps it.
func (*Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Update || level(ctx, a.GetUserInfo()) <= administrators {
		return nil
	}
	obj, ok := metadataOf(a.GetObject())
	old, had := metadataOf(a.GetOldObject())
	if !ok || !had {
		return nil
	}
	mark := old.GetAnnotations()[core.ReplicateAnnotationKey]
	annotations := obj.GetAnnotations()
	if _, has := annotations[core.ReplicateAnnotationKey]; has || mark == "" {
		return nil
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[core.ReplicateAnnotationKey] = mark
	obj.SetAnnotations(annotations)
	return nil
}
