package resource

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Review describes a resource that can only be created. Its objects are questions, and the response, which is not stored,
// contains the result.
type Review[T Object] struct {
	// Name, Singular and Kind are as in Resource.
	Name     string
	Singular string
	Kind     string
	// Namespaced is set for questions about one namespace.
	Namespaced bool
	// New returns an empty object.
	New func() T
	// Evaluate returns the response, which may be obj itself. It is called after admission. ctx contains logical cluster,
	// user and namespace.
	Evaluate func(ctx context.Context, obj T) (runtime.Object, error)
}

// Plural implements Definition.
func (r *Review[T]) Plural() string { return r.Name }

func (r *Review[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error { //nolint:unparam // required by Definition
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind), r.New())
	scheme.AddKnownTypeWithName(internal(gv).WithKind(r.Kind), r.New())
	return nil
}

func (r *Review[T]) storage(*Builder, schema.GroupVersion) (map[string]rest.Storage, error) {
	if r.Evaluate == nil {
		return nil, fmt.Errorf("%s has no Evaluate function", r.Name)
	}
	return map[string]rest.Storage{r.Name: &reviewStorage[T]{r}}, nil
}

// reviewStorage serves POST of a Review.
type reviewStorage[T Object] struct{ review *Review[T] }

var (
	_ rest.Creater              = &reviewStorage[Object]{}
	_ rest.Scoper               = &reviewStorage[Object]{}
	_ rest.SingularNameProvider = &reviewStorage[Object]{}
)

// New implements rest.Storage.
func (s *reviewStorage[T]) New() runtime.Object { return s.review.New() }

// Destroy implements rest.Storage.
func (s *reviewStorage[T]) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (s *reviewStorage[T]) NamespaceScoped() bool { return s.review.Namespaced }

// GetSingularName implements rest.SingularNameProvider.
func (s *reviewStorage[T]) GetSingularName() string { return s.review.Singular }

// Create implements rest.Creater.
func (s *reviewStorage[T]) Create(ctx context.Context, obj runtime.Object, admit rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	question, ok := obj.(T)
	if !ok {
		return nil, errors.New("the object is not a " + s.review.Kind)
	}
	if admit != nil {
		if err := admit(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return s.review.Evaluate(ctx, question)
}
