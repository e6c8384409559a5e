package remoteparams

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// MaxObjects is how many parameters a selector may select.
const MaxObjects = 200

// Find returns the resource of a kind that parameters may be of, or nil.
type Find func(list *metav1.APIResourceList, kind string) *metav1.APIResource

// ErrTooMany says that a selector selects more.
var ErrTooMany = fmt.Errorf("the selector of the binding selects more than %d parameters: select fewer, or name one", MaxObjects)

// answer is what a shard has said. Nobody changes it.
type answer struct {
	// Resource, if it is about a kind, and whether its objects are in namespaces.
	Resource   string `json:"resource,omitempty"`
	Namespaced bool   `json:"namespaced,omitempty"`
	// Objects, if it is about objects.
	Objects []*unstructured.Unstructured `json:"objects,omitempty"`
	// Missing is set where there is no such thing.
	Missing bool `json:"missing,omitempty"`
	// refused is why there are no objects.
	refused error
}

// weight returns about how many bytes of memory an answer takes.
func (a *answer) weight() int {
	if a == nil {
		return 0
	}
	weight := len(a.Resource)
	for _, obj := range a.Objects {
		weight += Weigh(obj)
	}
	return weight
}

// Weigh returns about how many bytes of memory a parameter takes.
func Weigh(obj *unstructured.Unstructured) int { return weigh(obj.Object) }

// weigh counts a value, with what Go takes for it in an interface, a slice or a map.
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

// parseObject makes an answer of an object.
func parseObject(content []byte) (*answer, error) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("decoding a parameter: %w", err)
	}
	return &answer{Objects: []*unstructured.Unstructured{obj}}, nil
}

// parseList makes an answer of a list.
func parseList(content []byte) (*answer, error) {
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("decoding parameters: %w", err)
	}
	if len(list.Items) > MaxObjects || list.GetContinue() != "" {
		return nil, ErrTooMany
	}
	found := &answer{Objects: make([]*unstructured.Unstructured, 0, len(list.Items))}
	for i := range list.Items {
		found.Objects = append(found.Objects, &list.Items[i])
	}
	return found, nil
}

// parseKind returns what makes an answer of the resources of a group version: which of them
// a kind is.
func parseKind(kind schema.GroupVersionKind, find Find) func([]byte) (*answer, error) {
	return func(content []byte) (*answer, error) {
		list := &metav1.APIResourceList{}
		if err := json.Unmarshal(content, list); err != nil {
			return nil, fmt.Errorf("decoding the resources of %s: %w", kind.GroupVersion(), err)
		}
		if r := find(list, kind.Kind); r != nil {
			return &answer{Resource: r.Name, Namespaced: r.Namespaced}, nil
		}
		return &answer{Missing: true}, nil
	}
}
