package core

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

var namespaces = &resource.Resource[*corev1.Namespace]{
	Name:       "namespaces",
	Singular:   "namespace",
	Kind:       "Namespace",
	ShortNames: namespaceShortNames,
	New:        func() *corev1.Namespace { return &corev1.Namespace{} },
	NewList:    func() runtime.Object { return &corev1.NamespaceList{} },
	Default:    labelNamespace,
	Strategy: resource.Strategy[*corev1.Namespace]{
		PrepareForCreate: prepareNamespace,
		PrepareForUpdate: func(_ context.Context, namespace, old *corev1.Namespace) {
			namespace.Spec.Finalizers = old.Spec.Finalizers
			namespace.Status = old.Status
		},
		Validate: func(_ context.Context, namespace *corev1.Namespace) field.ErrorList {
			return validateNamespace(namespace)
		},
		ValidateUpdate: func(_ context.Context, namespace, old *corev1.Namespace) field.ErrorList {
			errs := validateNamespace(namespace)
			return append(errs, validate.ObjectMetaUpdate(&namespace.ObjectMeta, &old.ObjectMeta)...)
		},
		// Generated names are not known before; see labelNamespace.
		Canonicalize:        labelNamespace,
		UnconditionalUpdate: true,
		ResetFields:         [][]string{{"status"}},
	},
	Selectable: func(namespace *corev1.Namespace) fields.Set {
		return fields.Set{
			"status.phase": string(namespace.Status.Phase),
			"name":         namespace.Name,
		}
	},
	FieldLabels: []string{"status.phase", "name"},
	Columns: []resource.Column[*corev1.Namespace]{
		resource.NameColumn[*corev1.Namespace](),
		{
			Name:        "Status",
			Description: "The status of the namespace",
			Cell:        func(namespace *corev1.Namespace) any { return string(namespace.Status.Phase) },
		},
		resource.AgeColumn[*corev1.Namespace](),
	},
	Subresources: []resource.Subresource[*corev1.Namespace]{
		{Name: "status", Strategy: namespaceStatus},
		{Name: "finalize", Strategy: namespaceFinalize, WriteOnly: true},
	},
	Customize: func(store *genericregistry.Store) {
		store.ShouldDeleteDuringUpdate = namespaceIsDone
		store.ReturnDeletedObject = true
	},
	Wrap: newNamespaceStorage,
}

var namespaceStatus = resource.Strategy[*corev1.Namespace]{
	PrepareForUpdate: func(_ context.Context, namespace, old *corev1.Namespace) {
		namespace.Spec = old.Spec
	},
	ValidateUpdate:      validateNamespaceStatus,
	Canonicalize:        labelNamespace,
	UnconditionalUpdate: true,
	ResetFields:         [][]string{{"spec"}},
}

// namespaceFinalize is used by the controller that deletes the content of terminating namespaces: it removes its
// finalizer from the spec.
var namespaceFinalize = resource.Strategy[*corev1.Namespace]{
	PrepareForUpdate: func(_ context.Context, namespace, old *corev1.Namespace) {
		namespace.Status = old.Status
	},
	ValidateUpdate: func(_ context.Context, namespace, old *corev1.Namespace) field.ErrorList {
		errs := validate.ObjectMetaUpdate(&namespace.ObjectMeta, &old.ObjectMeta)
		for i, name := range namespace.Spec.Finalizers {
			errs = append(errs, validate.Finalizer(string(name), field.NewPath("spec", "finalizers").Index(i))...)
		}
		return errs
	},
	Canonicalize:        labelNamespace,
	UnconditionalUpdate: true,
	ResetFields:         [][]string{{"status"}},
}

// labelNamespace sets the label with the name, for selectors.
func labelNamespace(namespace *corev1.Namespace) {
	if namespace.Name == "" {
		return
	}
	if namespace.Labels == nil {
		namespace.Labels = map[string]string{}
	}
	namespace.Labels[corev1.LabelMetadataName] = namespace.Name
}

// prepareNamespace makes a new namespace active and adds the finalizer of the namespace controller.
func prepareNamespace(_ context.Context, namespace *corev1.Namespace) {
	namespace.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(namespace.Spec.Finalizers, corev1.FinalizerKubernetes) {
		namespace.Spec.Finalizers = append(namespace.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
}

func validateNamespace(namespace *corev1.Namespace) field.ErrorList {
	errs := validate.ObjectMeta(&namespace.ObjectMeta, false, apivalidation.ValidateNamespaceName)
	for _, name := range namespace.Spec.Finalizers {
		errs = append(errs, validate.Finalizer(string(name), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func validateNamespaceStatus(_ context.Context, namespace, old *corev1.Namespace) field.ErrorList {
	errs := validate.ObjectMetaUpdate(&namespace.ObjectMeta, &old.ObjectMeta)
	// The path is written with a capital letter, as kube-apiserver writes it.
	path, phase := field.NewPath("status", "Phase"), namespace.Status.Phase
	switch {
	case namespace.DeletionTimestamp.IsZero() && phase != corev1.NamespaceActive:
		errs = append(errs, field.Invalid(path, phase, "may only be 'Active' if `deletionTimestamp` is empty"))
	case !namespace.DeletionTimestamp.IsZero() && phase != corev1.NamespaceTerminating:
		errs = append(errs, field.Invalid(path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"))
	}
	return errs
}

// namespaceIsDone reports whether an update removed the last finalizer of a terminating namespace.
func namespaceIsDone(ctx context.Context, key string, obj, existing runtime.Object) bool {
	namespace, ok := obj.(*corev1.Namespace)
	return ok && len(namespace.Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
}
