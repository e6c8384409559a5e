package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

var namespaces = &resource.Resource[*corev1.Namespace, *corev1.NamespaceList]{
	ShortNames: namespaceShortNames,
	Default:    labelNamespace,
	Strategy: resource.Strategy[*corev1.Namespace]{
		PrepareForCreate: prepareNamespace,
		PrepareForUpdate: func(_ context.Context, namespace, old *corev1.Namespace) {
			namespace.Spec.Finalizers = old.Spec.Finalizers
			namespace.Status = old.Status
		},
		Validate: validateNamespace,
		ValidateUpdate: func(ctx context.Context, namespace, old *corev1.Namespace) field.ErrorList {
			return append(validateNamespace(ctx, namespace), validate.ObjectMetaUpdate(namespace, old)...)
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
	Wrap: func(store *genericregistry.Store) rest.Storage {
		return &namespaceStorage{namespaceVerbs: store, store: store}
	},
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

// namespaceFinalize is used by the controller that deletes the content of namespaces, to remove its finalizer.
var namespaceFinalize = resource.Strategy[*corev1.Namespace]{
	PrepareForUpdate: func(_ context.Context, namespace, old *corev1.Namespace) {
		namespace.Status = old.Status
	},
	ValidateUpdate: func(_ context.Context, namespace, old *corev1.Namespace) field.ErrorList {
		errs := validate.ObjectMetaUpdate(namespace, old)
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

func validateNamespace(_ context.Context, namespace *corev1.Namespace) field.ErrorList {
	errs := validate.ObjectMeta(namespace, false, apivalidation.ValidateNamespaceName)
	for _, name := range namespace.Spec.Finalizers {
		errs = append(errs, validate.Finalizer(string(name), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func validateNamespaceStatus(_ context.Context, namespace, old *corev1.Namespace) field.ErrorList {
	errs := validate.ObjectMetaUpdate(namespace, old)
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

var namespaceShortNames = []string{"ns"}

// namespaceVerbs are the verbs of the generic store, without delete, which is different, and deletecollection.
type namespaceVerbs interface {
	rest.Scoper
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.Watcher
	rest.ResetFieldsStrategy
	rest.SingularNameProvider
	rest.StorageVersionProvider
	rest.StorageWithReadiness
}

// namespaceStorage serves namespaces. A deleted namespace becomes Terminating until its spec has no finalizers.
type namespaceStorage struct {
	namespaceVerbs
	store *genericregistry.Store
}

var (
	_ rest.GracefulDeleter    = &namespaceStorage{}
	_ rest.ShortNamesProvider = &namespaceStorage{}
)

func (s *namespaceStorage) ShortNames() []string { return namespaceShortNames }

// Delete makes the namespace Terminating. If it already is, it is deleted if its spec has no finalizers.
func (s *namespaceStorage) Delete(ctx context.Context, name string, validation rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	namespace, err := get[*corev1.Namespace](ctx, s.store, name)
	if err != nil {
		return nil, false, err
	}
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if err := pinToObject(options, namespace); err != nil {
		return nil, false, err
	}
	switch {
	case namespace.DeletionTimestamp.IsZero():
		terminating, err := s.terminate(ctx, name, validation, options)
		return terminating, false, err
	case len(namespace.Spec.Finalizers) > 0:
		return namespace, false, nil
	default:
		return s.store.Delete(ctx, name, validation, options)
	}
}

// pinToObject sets preconditions, so that a namespace that was recreated in between is not deleted.
func pinToObject(options *metav1.DeleteOptions, namespace *corev1.Namespace) error {
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	want := options.Preconditions
	if want.UID == nil {
		want.UID = &namespace.UID
	}
	if *want.UID != namespace.UID {
		return preconditionFailed(namespace.Name, "UID", string(*want.UID), string(namespace.UID))
	}
	if want.ResourceVersion != nil && *want.ResourceVersion != namespace.ResourceVersion {
		return preconditionFailed(namespace.Name, "ResourceVersion", *want.ResourceVersion, namespace.ResourceVersion)
	}
	return nil
}

// preconditionFailed returns an error with the message of kube-apiserver.
func preconditionFailed(name, field, want, got string) error {
	message := fmt.Sprintf("Precondition failed: %[1]s in precondition: %[2]s, %[1]s in object meta: %[3]s", field, want, got)
	return apierrors.NewConflict(corev1.Resource("namespaces"), name, errors.New(message))
}

func (s *namespaceStorage) terminate(ctx context.Context, name string, validation rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := s.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	update := func(existing runtime.Object) (runtime.Object, error) {
		namespace, ok := existing.(*corev1.Namespace)
		if !ok {
			return nil, fmt.Errorf("expected a *v1.Namespace in the storage of namespaces, got %T", existing)
		}
		if err := validation(ctx, namespace); err != nil {
			return nil, err
		}
		if namespace.DeletionTimestamp.IsZero() {
			now := metav1.Now()
			namespace.DeletionTimestamp = &now
		}
		namespace.Status.Phase = corev1.NamespaceTerminating
		if s.store.EnableGarbageCollection {
			namespace.Finalizers = dependentsFinalizers(namespace.Finalizers, options)
		}
		return namespace, nil
	}
	out := s.store.NewFunc()
	preconditions := storage.Preconditions{UID: options.Preconditions.UID, ResourceVersion: options.Preconditions.ResourceVersion}
	err = s.store.Storage.GuaranteedUpdate(ctx, key, out, false, &preconditions,
		storage.SimpleUpdate(update), dryrun.IsDryRun(options.DryRun), nil)
	if err != nil {
		return nil, interpret(err, name)
	}
	return out, nil
}

func interpret(err error, name string) error {
	resource := corev1.Resource("namespaces")
	err = storageerr.InterpretUpdateError(storageerr.InterpretGetError(err, resource, name), resource, name)
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		return apierrors.NewInternalError(err)
	}
	return err
}

// dependentsFinalizers returns the finalizers with those for the garbage collector according to the options.
func dependentsFinalizers(current []string, options *metav1.DeleteOptions) []string {
	orphan := slices.Contains(current, metav1.FinalizerOrphanDependents)
	foreground := slices.Contains(current, metav1.FinalizerDeleteDependents)
	//nolint:staticcheck // old clients still send the deprecated field
	if options.OrphanDependents != nil {
		orphan, foreground = *options.OrphanDependents, false
	} else if options.PropagationPolicy != nil {
		orphan = *options.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *options.PropagationPolicy == metav1.DeletePropagationForeground
	}
	out := slices.DeleteFunc(slices.Clone(current), func(name string) bool {
		return name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents
	})
	if orphan {
		out = append(out, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		out = append(out, metav1.FinalizerDeleteDependents)
	}
	return out
}

func get[T runtime.Object](ctx context.Context, store rest.Getter, name string) (T, error) {
	var none T
	obj, err := store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("expected a %T, got a %T", none, obj))
	}
	return typed, nil
}
