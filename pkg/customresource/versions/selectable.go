package versions

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage"

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
func (f *selectableField) of(object map[string]any) string {
	var value any = object
	for i := range f.levels {
		level := &f.levels[i]
		m, ok := value.(map[string]any)
		if !ok {
			return ""
		}
		if value, ok = m[level.name]; !ok || (value == nil && !level.nullable) {
			value = level.fallback
		}
	}
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
		u, _ := obj.(*unstructured.Unstructured) // or it were an error
		for i := range all {
			set[all[i].path] = all[i].of(u.Object)
		}
		return l, set, nil
	}}
}

// attributesOf returns what the watch cache keeps of each object: labels, name
// and namespace, which need no definition. It is the same for all of them.
func attributesOf(obj runtime.Object) (labels.Set, fields.Set, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a custom resource", obj)
	}
	return u.GetLabels(), fields.Set{"metadata.name": u.GetName(), "metadata.namespace": u.GetNamespace()}, nil
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
