package resource

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Review describes a resource that can only be created. Its objects are questions, and the response, which is not stored,
// contains the result.
type Review[T Object] struct {
	// Name and Kind are as in Resource.
	Name, Kind string
	// Namespaced is set for questions about one namespace.
	Namespaced bool
	// Evaluate returns the response, which may be obj itself. It is called after admission. ctx contains logical cluster,
	// user and namespace.
	Evaluate func(ctx context.Context, obj T) (runtime.Object, error)
}

// Plural implements Definition.
func (r *Review[T]) Plural() string { return r.Name }

func (r *Review[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error { //nolint:unparam // required by Definition
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind), newObject[T]())
	scheme.AddKnownTypeWithName(internal(gv).WithKind(r.Kind), newObject[T]())
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

func (s *reviewStorage[T]) New() runtime.Object { return newObject[T]() }

func (s *reviewStorage[T]) Destroy() {}

func (s *reviewStorage[T]) NamespaceScoped() bool { return s.review.Namespaced }

func (s *reviewStorage[T]) GetSingularName() string { return strings.ToLower(s.review.Kind) }

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

// ConvertExtra converts the extra fields of a user to another type of values. It returns nil if there are none.
func ConvertExtra[To, From ~[]string](extra map[string]From) map[string]To {
	if len(extra) == 0 {
		return nil
	}
	converted := make(map[string]To, len(extra))
	for key, values := range extra {
		converted[key] = To(values)
	}
	return converted
}
