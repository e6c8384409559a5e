package customresource

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/storage"
)

// dryRunAdmission puts the logical cluster's annotation on objects of a dry
// run, which never come to the storage that does it otherwise.
type dryRunAdmission struct {
	admission.Interface
}

var (
	_ admission.MutationInterface   = dryRunAdmission{}
	_ admission.ValidationInterface = dryRunAdmission{}
)

// Handles implements admission.Interface.
func (a dryRunAdmission) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update || a.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (a dryRunAdmission) Admit(ctx context.Context, attrs admission.Attributes, o admission.ObjectInterfaces) error {
	if mutation, ok := a.Interface.(admission.MutationInterface); ok && a.Interface.Handles(attrs.GetOperation()) {
		if err := mutation.Admit(ctx, attrs, o); err != nil {
			return err
		}
	}
	// Deletions and the scale subresource carry other kinds of objects.
	if _, ok := attrs.GetObject().(*unstructured.Unstructured); !ok || !attrs.IsDryRun() {
		return nil
	}
	return storage.Annotate(ctx, attrs.GetObject())
}

// Validate implements admission.ValidationInterface.
func (a dryRunAdmission) Validate(ctx context.Context, attrs admission.Attributes, o admission.ObjectInterfaces) error {
	if validation, ok := a.Interface.(admission.ValidationInterface); ok && a.Interface.Handles(attrs.GetOperation()) {
		return validation.Validate(ctx, attrs, o)
	}
	return nil
}
