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

// Convert returns an object in another API version. Fields without a rule are not changed, so the caller must prune the
// result according to the schema. It fails if a rule fails, or if the conversion exceeds the limits of cost and size.
//
// Fields that the other version does not have are kept in an annotation if the APIConversion preserves them. Clients may
// write this annotation: only preserved fields are restored from it, and malformed ones are ignored.
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
		remaining := budget{cost: costLimit, bytes: maxResultBytes}
		for i := range between.rules {
			if err := between.rules[i].apply(in.Object, out.Object, &remaining); err != nil {
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

// apply sets the destination in out. If there is no source it removes the destination, whose value from the
// other version may have another meaning.
func (r *rule) apply(in, out map[string]any, remaining *budget) error {
	value, ok, _ := unstructured.NestedFieldNoCopy(in, r.source...)
	if ok && r.program != nil && (value != nil || r.schema == nil || r.schema.Nullable) {
		computed, err := r.compute(value, remaining)
		switch {
		case err != nil:
			return err
		case computed == nil:
			unstructured.RemoveNestedField(out, r.destination...)
		default:
			set(out, r.destination, computed)
		}
		return nil
	}
	if !ok || r.program != nil {
		unstructured.RemoveNestedField(out, r.destination...)
		return nil
	}
	set(out, r.destination, runtime.DeepCopyJSONValue(value))
	return nil
}

func (r *rule) compute(value any, remaining *budget) (any, error) {
	var given ref.Val
	if r.schema != nil {
		given = schemacel.UnstructuredToVal(value, r.schema)
	} else {
		given = types.DefaultTypeAdapter.NativeToValue(value)
	}
	if types.IsError(given) {
		return nil, fmt.Errorf("the field does not match the schema: %v", given)
	}
	result, details, err := r.program.Eval(map[string]any{self: given})
	if details != nil && details.ActualCost() != nil {
		if err := remaining.spend(*details.ActualCost()); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the transformation failed: %w", err)
	}
	return remaining.toJSON(result)
}

// preservedFor returns the annotation with the preserved fields of a version.
func preservedFor(version string) string {
	return apisv1alpha1.VersionPreservationAnnotationKeyPrefix + version
}

// keep stores the preserved fields of the version from in the annotation.
func (c *conversion) keep(in, out *unstructured.Unstructured, from string) error {
	values := map[string]any{}
	for _, names := range c.preserve {
		if value, ok, _ := unstructured.NestedFieldNoCopy(in.Object, names...); ok {
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

// restore moves the preserved fields of a version from the annotation to the object.
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

// set sets a field. Unlike unstructured.SetNestedField, it replaces parents that are not objects.
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
