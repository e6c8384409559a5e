// Package versions stores custom resources. Each resource has one raw store with one watch cache, which all schemas
// share. On top of it, each version of each schema has a version store, which runs the schema's codec. Version stores
// share a budget for cached decoded objects, and limit the calls of conversion webhooks, which belong to tenants.
package versions

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// rawStore is the shared store of a resource. It contains the objects of all logical clusters and identities,
// and does not depend on a definition.
type rawStore struct {
	storage.Interface
	resource schema.GroupResource
	// prefix is the prefix of its keys.
	prefix     string
	unreadable *unreadable.Record
	destroy    factory.DestroyFunc
	users      int
	// stats is the last count of its objects, or nil; uncounted is set if they could not be counted.
	stats     *storage.Stats
	uncounted bool
}

// calls limits the concurrent calls of conversion webhooks.
type calls struct {
	// conversions limits conversions of objects that are read or written. updates limits the few updates in
	// which the library may convert an object for its managed fields, so that readers do not wait for these.
	conversions, updates *webhooktransport.Calls
}

// versionStore is the storage of one version of one schema. It reads from and writes to the shared store, and
// runs the schema's codec on every object.
type versionStore struct {
	storage.Interface // the shared store, for methods without objects

	raw   *rawStore
	gvk   schema.GroupVersionKind
	codec runtime.Codec
	// shape decides which objects the codec does not change; shapes, by version, compute the size of defaults.
	shape  *shape
	shapes map[string]*shape
	// projection converts stored objects of another resource; nil if there is none.
	projection *definitions.Projection
	// metadataOnly is set for metadata of objects of any schema; only the version is changed.
	metadataOnly bool
	// callsWebhook is set if a webhook converts between versions; stored is the version in which objects are written.
	callsWebhook bool
	stored       schema.GroupVersion
	calls        *calls
	check        *conversionCheck
	// selects are the attributes for selectable fields; nil if there are none.
	selects *tenantstorage.Attributes

	decoded *resultCache[*unstructured.Unstructured]
	encoded *resultCache[json.RawMessage]
	// listStore is the registry for lists as JSON; nil before the first one.
	listStore atomic.Pointer[genericregistry.Store]
	// writer is the writer for the core group; nil before its first use.
	writer atomic.Pointer[CoreWriter]

	open context.Context //nolint:containedctx // ends when the store is closed
	end  context.CancelFunc

	// uses is the number of users, and dropped is set when upstream does not need the store any more.
	// Stores.mu guards both.
	uses    int
	dropped bool
}

func newVersionStore(raw *rawStore, sch *definitions.Schema, gvk schema.GroupVersionKind, codec runtime.Codec, calls *calls, decoded, encoded *budget) *versionStore {
	stored := schema.GroupVersion{Group: gvk.Group, Version: sch.StoredVersion()}
	open, end := context.WithCancel(context.Background()) //nolint:forbidigo // ends when the store is closed
	v := &versionStore{
		Interface:    raw.Interface,
		raw:          raw,
		gvk:          gvk,
		codec:        codec,
		shapes:       shapesOf(sch.Spec()),
		metadataOnly: sch.MetadataOnly,
		stored:       stored,
		calls:        calls,
		check:        newConversionCheck(sch, stored),
		decoded:      newResultCache[*unstructured.Unstructured](decoded),
		encoded:      newResultCache[json.RawMessage](encoded),
		open:         open,
		end:          end,
	}
	v.shape = v.shapes[gvk.Version]
	return v
}

func (v *versionStore) close() {
	v.end()
	v.decoded.close()
	v.encoded.close()
}

type selectableField struct {
	path   string
	levels []selectableLevel
}

// selectableLevel is one level of the path to a selectable field. A missing value is the default, as for readers.
type selectableLevel struct {
	name     string
	fallback any // the default, or nil
	nullable bool
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
	at := object.Value
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

// selectableAttributes returns attributes with the selectable fields of a version, or nil if it has none.
func selectableAttributes(version *apiextensionsv1.CustomResourceDefinitionVersion) (*tenantstorage.Attributes, error) {
	if version == nil || len(version.SelectableFields) == 0 {
		return nil, nil
	}
	all := make([]selectableField, 0, len(version.SelectableFields))
	for _, f := range version.SelectableFields {
		field, err := newSelectableField(f.JSONPath, version.Schema)
		if err != nil {
			return nil, err
		}
		all = append(all, field)
	}
	return attributesWith(func(set fields.Set, stored *packed.Object) {
		for i := range all {
			set[all[i].path] = all[i].value(stored)
		}
	}), nil
}

func attributesWith(add func(set fields.Set, stored *packed.Object)) *tenantstorage.Attributes {
	return &tenantstorage.Attributes{Get: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, set, err := attributesOf(obj)
		if stored, ok := obj.(*packed.Object); ok {
			add(set, stored)
		}
		return l, set, err
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
