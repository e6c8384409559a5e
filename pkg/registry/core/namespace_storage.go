package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
)

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

// namespaceStorage serves namespaces. Unlike in the generic store, a deleted namespace becomes Terminating, and is
// removed when its spec has no finalizers.
type namespaceStorage struct {
	namespaceVerbs
	store *genericregistry.Store
}

var (
	_ rest.GracefulDeleter    = &namespaceStorage{}
	_ rest.ShortNamesProvider = &namespaceStorage{}
)

func newNamespaceStorage(store *genericregistry.Store) rest.Storage {
	return &namespaceStorage{namespaceVerbs: store, store: store}
}

// ShortNames implements rest.ShortNamesProvider.
func (s *namespaceStorage) ShortNames() []string { return namespaceShortNames }

// Delete makes the namespace Terminating. If it already is, it is deleted if its spec has no finalizers.
func (s *namespaceStorage) Delete(ctx context.Context, name string, validation rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := s.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	namespace, err := asNamespace(obj)
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

// preconditionError has the message of kube-apiserver.
type preconditionError struct{ field, want, got string }

func (e *preconditionError) Error() string {
	return fmt.Sprintf("Precondition failed: %[1]s in precondition: %[2]s, %[1]s in object meta: %[3]s", e.field, e.want, e.got)
}

func preconditionFailed(name, field, want, got string) error {
	return apierrors.NewConflict(corev1.Resource("namespaces"), name, &preconditionError{field: field, want: want, got: got})
}

func (s *namespaceStorage) terminate(ctx context.Context, name string, validation rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := s.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	update := func(existing runtime.Object) (runtime.Object, error) {
		namespace, err := asNamespace(existing)
		if err != nil {
			return nil, err
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

func asNamespace(obj runtime.Object) (*corev1.Namespace, error) {
	namespace, ok := obj.(*corev1.Namespace)
	if !ok {
		return nil, fmt.Errorf("expected a *v1.Namespace in the storage of namespaces, got %T", obj)
	}
	return namespace, nil
}
