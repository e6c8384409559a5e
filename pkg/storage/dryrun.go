package storage

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
)

type dryRunAdmission struct{}

// NewDryRunAdmission returns an admission plugin that annotates objects in dry-run requests, because
// registries serve these without the storage. It must be the last mutating plugin.
func NewDryRunAdmission() admission.MutationInterface { return dryRunAdmission{} }

func (dryRunAdmission) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

func (dryRunAdmission) Admit(ctx context.Context, attrs admission.Attributes, _ admission.ObjectInterfaces) error {
	if !attrs.IsDryRun() || attrs.GetObject() == nil {
		return nil
	}
	switch attrs.GetSubresource() {
	case "", "status", "finalize":
		return Annotate(ctx, attrs.GetObject())
	default: // the object is of another kind, e.g. a scale or a token
		return nil
	}
}
