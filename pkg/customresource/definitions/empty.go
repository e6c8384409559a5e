package definitions

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Remaining is what is left of a custom resource's objects in a logical cluster.
type Remaining struct {
	// Objects is how many there are.
	Objects int
	// Finalizers is how many of them wait for each finalizer.
	Finalizers map[string]int
}

// Empty deletes all objects of a custom resource in the logical cluster of ctx, and of
// its identity, past admission but through their finalizers, and returns what is left.
func Empty(ctx context.Context, instances finalizer.ListerCollectionDeleter) (Remaining, error) {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	list, err := listAll(ctx, instances)
	if err != nil || len(list) == 0 {
		return Remaining{}, err
	}
	emptied := map[string]bool{}
	for i := range list {
		namespace := list[i].GetNamespace()
		if emptied[namespace] {
			continue
		}
		emptied[namespace] = true
		in := genericapirequest.WithNamespace(ctx, namespace)
		if _, err := instances.DeleteCollection(in, rest.ValidateAllObjectFunc, nil, nil); err != nil {
			return Remaining{}, fmt.Errorf("deleting instances: %w", err)
		}
	}
	if list, err = listAll(ctx, instances); err != nil {
		return Remaining{}, err
	}
	left := Remaining{Objects: len(list), Finalizers: map[string]int{}}
	for i := range list {
		for _, f := range list[i].GetFinalizers() {
			left.Finalizers[f]++
		}
	}
	return left, nil
}

func listAll(ctx context.Context, instances finalizer.ListerCollectionDeleter) ([]unstructured.Unstructured, error) {
	obj, err := instances.List(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing instances: %w", err)
	}
	list, ok := obj.(*unstructured.UnstructuredList)
	if !ok {
		return nil, fmt.Errorf("listing instances gave a %T", obj)
	}
	return list.Items, nil
}
