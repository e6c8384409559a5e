package conversions

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Convert returns an object in another API version, which it leaves as it is. What no
// rule is about stays where it is: whoever calls prunes by the schema. It fails where a
// rule does, costs too much, or makes too much.
//
// What a version says and another cannot is, if the APIConversion has it preserved, in
// an annotation of the object in the other. Clients may write that annotation: of it
// only preserved fields are taken, and it is left alone if it is not of the form.
func (r *Rules) Convert(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
	gv, err := schema.ParseGroupVersion(to)
	if err != nil {
		return nil, err
	}
	out := in.DeepCopy()
	out.SetAPIVersion(to)
	from := in.GroupVersionKind().Version
	between := r.between[pair{from, gv.Version}]
	if between != nil {
		left := budget{cost: costLimit, bytes: maxResultBytes}
		for i := range between.rules {
			if err := between.rules[i].apply(in.Object, out.Object, &left); err != nil {
				return nil, fmt.Errorf("%s of the APIConversion: %w", between.rules[i].at, err)
			}
		}
	}
	r.restore(out, gv.Version)
	if between != nil {
		if err := between.keep(in, out, from); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// apply sets the destination in out to what the source becomes, and removes it
// where there is no source: what it was in the other version means something else.
func (r *rule) apply(in, out map[string]any, left *budget) error {
	value, ok := get(in, r.source)
	if ok && r.program != nil && (value != nil || r.schema == nil || r.schema.Nullable) {
		computed, err := r.compute(value, left)
		switch {
		case err != nil:
			return err
		case computed == nil:
			remove(out, r.destination)
		default:
			set(out, r.destination, computed)
		}
		return nil
	}
	if !ok || r.program != nil {
		remove(out, r.destination)
		return nil
	}
	set(out, r.destination, runtime.DeepCopyJSONValue(value))
	return nil
}

// compute runs the transformation.
func (r *rule) compute(value any, left *budget) (any, error) {
	var given ref.Val
	if r.schema != nil {
		given = schemacel.UnstructuredToVal(value, r.schema)
	} else {
		given = types.DefaultTypeAdapter.NativeToValue(value)
	}
	if types.IsError(given) {
		return nil, fmt.Errorf("the field is not what the schema says: %v", given)
	}
	result, details, err := r.program.Eval(map[string]any{self: given})
	if details != nil && details.ActualCost() != nil {
		if err := left.spend(*details.ActualCost()); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the transformation failed: %w", err)
	}
	return left.toJSON(result)
}

// preservedFor is the annotation with the fields that are preserved for a version.
func preservedFor(version string) string {
	return apisv1alpha1.VersionPreservationAnnotationKeyPrefix + version
}

// keep puts the fields that the other version cannot say into the annotation for from.
func (c *conversion) keep(in, out *unstructured.Unstructured, from string) error {
	values := map[string]any{}
	for _, names := range c.preserve {
		if value, ok := get(in.Object, names); ok {
			values[strings.Join(names, ".")] = value
		}
	}
	annotations := out.GetAnnotations()
	if len(values) == 0 {
		if _, stale := annotations[preservedFor(from)]; stale {
			delete(annotations, preservedFor(from))
			out.SetAnnotations(annotations)
		}
		return nil
	}
	text, err := json.Marshal(values)
	if err != nil {
		return fmt.Errorf("encoding the fields to preserve: %w", err)
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[preservedFor(from)] = string(text)
	if err := apivalidation.ValidateAnnotationsSize(annotations); err != nil {
		return fmt.Errorf("the fields to preserve do not fit into an annotation: %w", err)
	}
	out.SetAnnotations(annotations)
	return nil
}

// restore takes the fields that are preserved for a version out of their annotation.
func (r *Rules) restore(out *unstructured.Unstructured, version string) {
	annotations := out.GetAnnotations()
	text, ok := annotations[preservedFor(version)]
	if !ok {
		return
	}
	var values map[string]any
	if utiljson.Unmarshal([]byte(text), &values) != nil {
		return
	}
	for path, names := range r.preserved[version] {
		if value, ok := values[path]; ok {
			set(out.Object, names, value)
		}
	}
	delete(annotations, preservedFor(version))
	out.SetAnnotations(annotations)
}

// get returns the value of a field.
func get(in map[string]any, names []string) (any, bool) {
	for _, name := range names[:len(names)-1] {
		next, ok := in[name].(map[string]any)
		if !ok {
			return nil, false
		}
		in = next
	}
	value, ok := in[names[len(names)-1]]
	return value, ok
}

// set sets a field, in place of whatever else is where objects have to be.
func set(in map[string]any, names []string, value any) {
	for _, name := range names[:len(names)-1] {
		next, ok := in[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			in[name] = next
		}
		in = next
	}
	in[names[len(names)-1]] = value
}

// remove removes a field.
func remove(in map[string]any, names []string) {
	for _, name := range names[:len(names)-1] {
		next, ok := in[name].(map[string]any)
		if !ok {
			return
		}
		in = next
	}
	delete(in, names[len(names)-1])
}
