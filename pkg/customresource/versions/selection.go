package versions

import (
	"context"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
)

// selectableField is a selectable field of a version.
type selectableField struct {
	path   string
	levels []selectableLevel
}

// selectableLevel is one level of the path to a selectable field. A missing value is the default, as for
// readers.
type selectableLevel struct {
	name     string
	fallback any // the default, or nil
	nullable bool
}

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

// newSelectableField resolves a path, which consists of names only, in a schema.
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

// value returns the value of the field in an object, or an empty string.
func (f *selectableField) value(object *packed.Object) string {
	at := object.Value()
	for i := range f.levels {
		level := &f.levels[i]
		if !at.IsObject() {
			return ""
		}
		if at = at.Field(level.name); at.IsZero() || at.IsNull() && !level.nullable {
			return defaultText(level.fallback, f.levels[i+1:])
		}
	}
	return textOf(at.Any())
}

// defaultText returns the value of the field below a default, where levels is the rest of the path.
func defaultText(value any, levels []selectableLevel) string {
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

func selectableAttributes(all []selectableField) *tenantstorage.Attributes {
	if len(all) == 0 {
		return nil
	}
	return &tenantstorage.Attributes{Get: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, set, err := attributesOf(obj)
		if err != nil {
			return nil, nil, err
		}
		stored, _ := obj.(*packed.Object) // attributesOf returned no error
		for i := range all {
			set[all[i].path] = all[i].value(stored)
		}
		return l, set, nil
	}}
}

// attributesOf returns the attributes that the watch cache keeps for each object: labels, name and namespace.
// They do not depend on a definition.
func attributesOf(obj runtime.Object) (labels.Set, fields.Set, error) {
	stored, err := storedObject(obj)
	if err != nil {
		return nil, nil, err
	}
	return stored.GetLabels(), fields.Set{"metadata.name": stored.GetName(), "metadata.namespace": stored.GetNamespace()}, nil
}

func storedObject(obj runtime.Object) (*packed.Object, error) {
	stored, ok := obj.(*packed.Object)
	if !ok {
		return nil, fmt.Errorf("the storage of custom resources returned a %T", obj)
	}
	return stored, nil
}

// withAttributes adds the function that reads selectable fields to the options of a list or watch, because the
// shared store does not support these fields.
func (v *versionStore) withAttributes(opts storage.ListOptions) storage.ListOptions {
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

// projectedAttributes returns attributes for selecting stored objects by their projected names.
func projectedAttributes(p *definitions.Projection) *tenantstorage.Attributes {
	return &tenantstorage.Attributes{Get: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, set, err := attributesOf(obj)
		if err != nil {
			return nil, nil, err
		}
		stored, _ := obj.(*packed.Object) // attributesOf returned no error
		set["metadata.name"] = p.ShownName(stored.Unstructured())
		return l, set, nil
	}}
}

// storedKey returns the key of the stored object for the key in a request.
func (v *versionStore) storedKey(ctx context.Context, key string) (string, error) {
	if v.projection == nil {
		return key, nil
	}
	at := strings.LastIndexByte(key, '/') + 1
	name, err := v.projection.StoredName(ctx, key[at:])
	if err != nil {
		return "", err
	}
	if name == "" {
		return "", storage.NewKeyNotFoundError(key, 0)
	}
	return key[:at] + name, nil
}

// listRequest widens a list or watch of one name to all objects, because the object that is shown under a name
// may change.
func (v *versionStore) listRequest(key string, opts storage.ListOptions) (string, storage.ListOptions) {
	if v.projection != nil && !opts.Recursive {
		key, opts.Recursive = key[:strings.LastIndexByte(key, '/')+1], true
	}
	return key, opts
}
