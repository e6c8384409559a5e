package storage

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
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

// AnnotateDryRun makes one store annotate objects in dry-run requests, where
// there is no admission plugin to do so. Call it before the store serves; hooks
// that the store has stay.
func AnnotateDryRun(store *genericregistry.Store) {
	beginCreate, beginUpdate := store.BeginCreate, store.BeginUpdate
	store.BeginCreate = func(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		if len(options.DryRun) > 0 {
			if err := Annotate(ctx, obj); err != nil {
				return nil, err
			}
		}
		if beginCreate == nil {
			return func(context.Context, bool) {}, nil
		}
		return beginCreate(ctx, obj, options)
	}
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		if len(options.DryRun) > 0 {
			if err := Annotate(ctx, obj); err != nil {
				return nil, err
			}
		}
		if beginUpdate == nil {
			return func(context.Context, bool) {}, nil
		}
		return beginUpdate(ctx, obj, old, options)
	}
}
