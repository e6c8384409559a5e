package customresource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage"
)

// selectableField is a field by which objects can be selected, with all that
// decides about its value.
type selectableField struct {
	Path     string            `json:"path"`
	Segments []selectableLevel `json:"segments"`
}

// selectableLevel is a level of the path to a selectable field. A value that is
// not stored is the default, as it is for readers.
type selectableLevel struct {
	Name     string          `json:"name"`
	Default  json.RawMessage `json:"default,omitempty"`
	Nullable bool            `json:"nullable,omitempty"`

	value any // of Default
}

// selectableFields describes a version's selectable fields; empty if there are
// none. Versions with the same description can share a watch cache.
func selectableFields(spec *specV1, version string) string {
	for i := range spec.Versions {
		v := &spec.Versions[i]
		if v.Name != version || len(v.SelectableFields) == 0 {
			continue
		}
		all := make([]selectableField, 0, len(v.SelectableFields))
		for _, f := range v.SelectableFields {
			all = append(all, newSelectableField(f.JSONPath, v.Schema))
		}
		slices.SortFunc(all, func(a, b selectableField) int { return strings.Compare(a.Path, b.Path) })
		described, err := json.Marshal(all)
		if err != nil {
			return "" // the strings of a definition that was decoded can be encoded
		}
		return string(described)
	}
	return ""
}

// newSelectableField follows a path, which is of names only, through a schema.
func newSelectableField(path string, schema *apiextensionsv1.CustomResourceValidation) selectableField {
	f := selectableField{Path: strings.TrimPrefix(path, ".")}
	var at apiextensionsv1.JSONSchemaProps
	if schema != nil && schema.OpenAPIV3Schema != nil {
		at = *schema.OpenAPIV3Schema
	}
	for name := range strings.SplitSeq(f.Path, ".") {
		at = at.Properties[name]
		level := selectableLevel{Name: name, Nullable: at.Nullable}
		if at.Default != nil {
			level.Default = at.Default.Raw
		}
		f.Segments = append(f.Segments, level)
	}
	return f
}

// of returns the value of the field in an object; empty if there is none.
func (f *selectableField) of(object map[string]any) string {
	var value any = object
	for i := range f.Segments {
		level := &f.Segments[i]
		m, ok := value.(map[string]any)
		if !ok {
			return ""
		}
		if value, ok = m[level.Name]; !ok || (value == nil && !level.Nullable) {
			value = level.value
		}
	}
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// attrFunc returns what a shared watch cache indexes and filters by: labels,
// name, namespace and selectable fields.
func attrFunc(selectable string) (storage.AttrFunc, error) {
	var all []selectableField
	if selectable != "" {
		if err := json.Unmarshal([]byte(selectable), &all); err != nil {
			return nil, fmt.Errorf("selectable fields: %w", err)
		}
	}
	for i := range all {
		for j := range all[i].Segments {
			level := &all[i].Segments[j]
			if len(level.Default) == 0 {
				continue
			}
			if err := utiljson.Unmarshal(level.Default, &level.value); err != nil {
				return nil, fmt.Errorf("default of selectable field %q: %w", all[i].Path, err)
			}
		}
	}
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, nil, fmt.Errorf("%T is not a custom resource", obj)
		}
		set := make(fields.Set, len(all)+2)
		set["metadata.name"], set["metadata.namespace"] = u.GetName(), u.GetNamespace()
		for i := range all {
			set[all[i].Path] = all[i].of(u.Object)
		}
		return u.GetLabels(), set, nil
	}, nil
}
