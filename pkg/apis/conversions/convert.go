package conversions

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
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
	if ok && r.program == nil {
		set(out, r.destination, runtime.DeepCopyJSONValue(value))
		return nil
	}
	if ok && (value != nil || r.schema == nil || r.schema.Nullable) {
		computed, err := r.compute(value, remaining)
		if err != nil {
			return err
		}
		if computed != nil {
			set(out, r.destination, computed)
			return nil
		}
	}
	unstructured.RemoveNestedField(out, r.destination...)
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
		cost := *details.ActualCost()
		if cost > remaining.cost {
			return nil, fmt.Errorf("the rules cost more than %d for one object", costLimit)
		}
		remaining.cost -= cost
	}
	if err != nil {
		return nil, fmt.Errorf("the transformation failed: %w", err)
	}
	return remaining.toJSON(result)
}

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

// maxResultBytes limits the results of all rules of one conversion, approximately. A request may have the same size.
//
//reference:limit request | APIConversion of an object: size of the results | 422 for writes, otherwise 500
const maxResultBytes = 3 << 20

// valueBytes is the minimum size that is counted for a value.
const valueBytes = 8

var errTooLarge = fmt.Errorf("the rules produce more than %d bytes for one object", maxResultBytes)

type budget struct {
	cost  uint64
	bytes int
}

func (b *budget) take(bytes int) error {
	if b.bytes -= bytes; b.bytes < 0 {
		return errTooLarge
	}
	return nil
}

// toJSON converts a CEL value to JSON, which may be larger, because CEL concatenates lists without copying them.
func (b *budget) toJSON(value ref.Val) (any, error) {
	if err := b.take(valueBytes); err != nil {
		return nil, err
	}
	switch v := value.(type) {
	case types.Null, nil:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if v > math.MaxInt64 {
			return nil, fmt.Errorf("the transformation returns %d, which exceeds a signed 64-bit integer", v)
		}
		return int64(v), nil
	case types.Double:
		if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f, nil
		}
		return nil, errors.New("the transformation returns a number that JSON cannot represent")
	case types.String:
		return string(v), b.take(len(v))
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), b.take(len(v))
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return v.String(), nil
	case *types.Optional:
		if v.HasValue() {
			return b.toJSON(v.GetValue())
		}
		return nil, nil
	case *types.Err:
		return nil, fmt.Errorf("the transformation failed: %w", v)
	case traits.Mapper:
		if part, ok := v.Value().(map[string]any); ok { // a part of the object, whose names are escaped in v
			v = types.NewStringInterfaceMap(types.DefaultTypeAdapter, part)
		}
		return b.mapToJSON(v)
	case traits.Lister:
		return b.listToJSON(v)
	default:
		return nil, fmt.Errorf("the transformation returns a %s, which objects cannot contain", value.Type().TypeName())
	}
}

func (b *budget) listToJSON(list traits.Lister) (any, error) {
	out := []any{}
	for it := list.Iterator(); it.HasNext() == types.True; {
		item, err := b.toJSON(it.Next())
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

func (b *budget) mapToJSON(m traits.Mapper) (any, error) {
	out := map[string]any{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key, ok := it.Next().(types.String)
		if !ok {
			return nil, errors.New("the transformation returns a map with keys that are not strings, which objects cannot contain")
		}
		if err := b.take(valueBytes + len(key)); err != nil {
			return nil, err
		}
		item, err := b.toJSON(m.Get(key))
		if err != nil {
			return nil, err
		}
		out[string(key)] = item
	}
	return out, nil
}
