package storage

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
)

// dryRunAdmission annotates objects of dry-run requests.
type dryRunAdmission struct{}

// NewDryRunAdmission returns an admission plugin for servers on this storage:
// it annotates objects in dry-run requests, which registries answer without
// their storage. Let it be the last that changes objects.
func NewDryRunAdmission() admission.MutationInterface { return dryRunAdmission{} }

// Handles implements admission.Interface.
func (dryRunAdmission) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

// Admit implements admission.MutationInterface.
func (dryRunAdmission) Admit(ctx context.Context, attrs admission.Attributes, _ admission.ObjectInterfaces) error {
	if !attrs.IsDryRun() || attrs.GetObject() == nil {
		return nil
	}
	switch attrs.GetSubresource() {
	case "", "status", "finalize":
		return Annotate(ctx, attrs.GetObject())
	default: // takes an object of another kind, such as a scale or a token
		return nil
	}
}
