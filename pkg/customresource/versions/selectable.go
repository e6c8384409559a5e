package versions

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
)

// selectableField is a field by which objects can be selected, with all that
// decides about its value in what is stored.
type selectableField struct {
	path   string
	levels []selectableLevel
}

// selectableLevel is a level of the path to a selectable field. A value that is
// not stored is the default, as it is for readers.
type selectableLevel struct {
	name     string
	fallback any // the default, or nil
	nullable bool
}

// selectableFields returns a version's selectable fields.
func selectableFields(spec *apiextensionsv1.CustomResourceDefinitionSpec, version string) ([]selectableField, error) {
	for i := range spec.Versions {
		v := &spec.Versions[i]
		if v.Name != version {
			continue
		}
		all := make([]selectableField, 0, len(v.SelectableFields))
		for _, f := range v.SelectableFields {
			field, err := newSelectableField(f.JSONPath, v.Schema)
			if err != nil {
				return nil, err
			}
			all = append(all, field)
		}
		return all, nil
	}
	return nil, nil
}

// newSelectableField follows a path, which is of names only, through a schema.
func newSelectableField(path string, schema *apiextensionsv1.CustomResourceValidation) (selectableField, error) {
	f := selectableField{path: strings.TrimPrefix(path, ".")}
	var at apiextensionsv1.JSONSchemaProps
	if schema != nil && schema.OpenAPIV3Schema != nil {
		at = *schema.OpenAPIV3Schema
	}
	for name := range strings.SplitSeq(f.path, ".") {
		at = at.Properties[name]
		level := selectableLevel{name: name, nullable: at.Nullable}
		if at.Default != nil && len(at.Default.Raw) > 0 {
			if err := utiljson.Unmarshal(at.Default.Raw, &level.fallback); err != nil {
				return f, fmt.Errorf("default of selectable field %q: %w", path, err)
			}
		}
		f.levels = append(f.levels, level)
	}
	return f, nil
}

// of returns the value of the field in an object; empty if there is none.
func (f *selectableField) of(object *packed.Object) string {
	at := object.Value()
	for i := range f.levels {
		level := &f.levels[i]
		if !at.IsObject() {
			return ""
		}
		if at = at.Field(level.name); at.IsZero() || at.IsNull() && !level.nullable {
			return textAt(level.fallback, f.levels[i+1:])
		}
	}
	return textOf(at.Any())
}

// textAt is of for what a default says, from which levels lead on.
func textAt(value any, levels []selectableLevel) string {
	for i := range levels {
		m, ok := value.(map[string]any)
		if !ok {
			return ""
		}
		if value, ok = m[levels[i].name]; !ok || (value == nil && !levels[i].nullable) {
			value = levels[i].fallback
		}
	}
	return textOf(value)
}

func textOf(value any) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// selectedBy returns the attributes by which objects are selected with selectable
// fields, or nil if there are none.
func selectedBy(all []selectableField) *tenantstorage.Attributes {
	if len(all) == 0 {
		return nil
	}
	return &tenantstorage.Attributes{Get: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, set, err := attributesOf(obj)
		if err != nil {
			return nil, nil, err
		}
		stored, _ := obj.(*packed.Object) // or it were an error
		for i := range all {
			set[all[i].path] = all[i].of(stored)
		}
		return l, set, nil
	}}
}

// attributesOf returns what the watch cache keeps of each object: labels, name
// and namespace, which need no definition. It is the same for all of them.
func attributesOf(obj runtime.Object) (labels.Set, fields.Set, error) {
	stored, err := storedObject(obj)
	if err != nil {
		return nil, nil, err
	}
	return stored.GetLabels(), fields.Set{"metadata.name": stored.GetName(), "metadata.namespace": stored.GetNamespace()}, nil
}

// storedObject returns an object of the shared store.
func storedObject(obj runtime.Object) (*packed.Object, error) {
	stored, ok := obj.(*packed.Object)
	if !ok {
		return nil, fmt.Errorf("storage of custom resources holds a %T", obj)
	}
	return stored, nil
}

// selected returns the options of a list or watch as the shared store is to be
// asked: whoever selects by selectable fields brings what tells their values,
// since the store knows none.
func (v *view) selected(opts storage.ListOptions) storage.ListOptions {
	if v.projection != nil {
		return v.selects.Select(opts)
	}
	if v.selects != nil && opts.Predicate.Field != nil {
		for _, r := range opts.Predicate.Field.Requirements() {
			if r.Field != "metadata.name" && r.Field != "metadata.namespace" {
				return v.selects.Select(opts)
			}
		}
	}
	opts.Predicate.GetAttrs = attributesOf
	return opts
}
