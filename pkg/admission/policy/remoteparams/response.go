package remoteparams

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// MaxObjects is the number of parameters that a selector may select.
//
//reference:limit request | admission policies: parameters that a selector selects | the policy fails
const MaxObjects = 200

// Find returns the resource of a kind that can be used for parameters, or nil.
type Find func(list *metav1.APIResourceList, kind string) *metav1.APIResource

// ErrTooMany means that a selector selects more than MaxObjects parameters.
var ErrTooMany = fmt.Errorf("the selector of the binding selects more than %d parameters: select fewer, or name one", MaxObjects)

// response is an immutable decoded response of a shard.
type response struct {
	// Resource and Namespaced are set in the response for a kind.
	Resource   string `json:"resource,omitempty"`
	Namespaced bool   `json:"namespaced,omitempty"`
	// Objects are set in the response for objects.
	Objects []*unstructured.Unstructured `json:"objects,omitempty"`
	// Missing is true if the object or kind does not exist.
	Missing bool `json:"missing,omitempty"`
	// refused is the error if the shard returned no objects.
	refused error
}

// weight returns the approximate memory of a response in bytes.
func (r *response) weight() int {
	if r == nil {
		return 0
	}
	weight := len(r.Resource)
	for _, obj := range r.Objects {
		weight += Weigh(obj)
	}
	return weight
}

// Weigh returns the approximate memory of a parameter in bytes.
func Weigh(obj *unstructured.Unstructured) int { return weigh(obj.Object) }

// weigh includes the overhead of Go for interfaces, slices and maps.
func weigh(value any) int {
	const header = 16
	weight := header
	switch value := value.(type) {
	case string:
		weight += header + len(value)
	case []any:
		weight += header
		for _, v := range value {
			weight += weigh(v)
		}
	case map[string]any:
		weight += 4 * header
		for k, v := range value {
			weight += 2*header + len(k) + weigh(v)
		}
	default:
		weight += header
	}
	return weight
}

func parseObject(content []byte) (*response, error) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("decoding a parameter: %w", err)
	}
	return &response{Objects: []*unstructured.Unstructured{obj}}, nil
}

func parseList(content []byte) (*response, error) {
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("decoding parameters: %w", err)
	}
	if len(list.Items) > MaxObjects || list.GetContinue() != "" {
		return nil, ErrTooMany
	}
	found := &response{Objects: make([]*unstructured.Unstructured, 0, len(list.Items))}
	for i := range list.Items {
		found.Objects = append(found.Objects, &list.Items[i])
	}
	return found, nil
}

// parseKind returns a function that finds a kind in the resources of a group version.
func parseKind(kind schema.GroupVersionKind, find Find) func([]byte) (*response, error) {
	return func(content []byte) (*response, error) {
		list := &metav1.APIResourceList{}
		if err := json.Unmarshal(content, list); err != nil {
			return nil, fmt.Errorf("decoding the resources of %s: %w", kind.GroupVersion(), err)
		}
		if r := find(list, kind.Kind); r != nil {
			return &response{Resource: r.Name, Namespaced: r.Namespaced}, nil
		}
		return &response{Missing: true}, nil
	}
}
