package definitions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"unique"
	"weak"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"
)

// interner shares the specs of equal definitions, and what else equal
// definitions have in common. A thousand definitions of the size of a large
// operator's cost half a gigabyte otherwise.
//
// It holds nothing itself: a shared spec lives as long as a definition has it.
type interner struct {
	mu     sync.Mutex
	seed   maphash.Seed
	byHash map[uint64]weak.Pointer[internedSpec]
	byMark map[specMark]weak.Pointer[internedSpec]
}

// specMark tells a shared spec by a pointer that definitions have to a part of it.
type specMark = weak.Pointer[apiextensions.CustomResourceConversion]

// internedSpec is a spec that many definitions share. Nobody may change it.
type internedSpec struct {
	// conversion is what the specs of the definitions point to, and so what
	// keeps all of this alive.
	conversion apiextensions.CustomResourceConversion
	internal   apiextensions.CustomResourceDefinitionSpec
	stored     []byte // what it was decoded from

	mu       sync.Mutex
	v1       *specV1
	own      *namedHash                  // of the schema with the names that the spec asks for
	hashes   map[string]string           // of schemas, by accepted names
	versions []string                    // stored versions
	fields   map[string]*metav1.FieldsV1 // managed fields, by themselves
	// violations is why the schemas are not structural, once that is checked.
	violations *apiextensions.CustomResourceDefinitionCondition
	checked    bool
}

// namedHash identifies the schema of a spec with names.
type namedHash struct {
	names apiextensionsv1.CustomResourceDefinitionNames
	hash  string
}

// manySets is of how many sets of managed fields of one spec there may be
// copies to share; equal definitions come from the same hands.
const manySets = 16

func newInterner() *interner {
	return &interner{
		seed:   maphash.MakeSeed(),
		byHash: map[uint64]weak.Pointer[internedSpec]{},
		byMark: map[specMark]weak.Pointer[internedSpec]{},
	}
}

// known returns the shared spec that was decoded from stored, or nil.
func (i *interner) known(stored []byte) *internedSpec {
	hash := maphash.Bytes(i.seed, stored)
	i.mu.Lock()
	known := i.byHash[hash].Value()
	i.mu.Unlock()
	if known == nil || !bytes.Equal(known.stored, stored) {
		return nil
	}
	return known
}

// give replaces the spec of a definition by the shared one that is equal to it.
func (s *internedSpec) give(crd *apiextensions.CustomResourceDefinition) {
	crd.Spec = s.internal
	// The pointer is written through by some conversions; each has its own.
	crd.Spec.PreserveUnknownFields = renew(s.internal.PreserveUnknownFields)
	if len(crd.Status.StoredVersions) == 0 { // a default that is made of the spec
		for i := range crd.Spec.Versions {
			if v := &crd.Spec.Versions[i]; v.Storage {
				crd.Status.StoredVersions = []string{v.Name}
				break
			}
		}
	}
	shareMetadata(&crd.ObjectMeta)
	s.shareWith(crd)
}

// intern shares a spec that was decoded from stored, and returns the one that is
// shared.
func (i *interner) intern(stored []byte, decoded *apiextensions.CustomResourceDefinitionSpec) *internedSpec {
	if known := i.known(stored); known != nil {
		return known
	}
	spec := &internedSpec{
		conversion: *decoded.Conversion, internal: *decoded,
		stored: bytes.Clone(stored), fields: map[string]*metav1.FieldsV1{},
	}
	spec.internal.Conversion = &spec.conversion
	// The conversion from v1 leaves a pointer into the whole decoded object.
	spec.internal.PreserveUnknownFields = renew(decoded.PreserveUnknownFields)
	hash, mark := maphash.Bytes(i.seed, stored), weak.Make(&spec.conversion)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.byHash[hash] = weak.Make(spec)
	i.byMark[mark] = weak.Make(spec)
	runtime.AddCleanup(spec, func(hash uint64) { i.remove(hash, mark) }, hash)
	return spec
}

// remove removes a spec that nobody has any more.
func (i *interner) remove(hash uint64, mark specMark) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byHash[hash].Value() == nil { // or it is another by now
		delete(i.byHash, hash)
	}
	delete(i.byMark, mark)
}

// shareMetadata makes equal strings one.
func shareMetadata(m *metav1.ObjectMeta) {
	m.Name = interned(m.Name)
	for key, value := range m.Annotations {
		if len(value) > longValue { // what was last applied, as a whole
			m.Annotations[key] = interned(value)
		}
	}
	for i := range m.ManagedFields {
		f := &m.ManagedFields[i]
		f.Manager, f.APIVersion = interned(f.Manager), interned(f.APIVersion)
		f.FieldsType, f.Subresource = interned(f.FieldsType), interned(f.Subresource)
		f.Operation = metav1.ManagedFieldsOperationType(interned(string(f.Operation)))
	}
	for i, f := range m.Finalizers {
		m.Finalizers[i] = interned(f)
	}
}

// longValue is from where on it pays to look for an equal annotation.
const longValue = 128

func interned(s string) string { return unique.Make(s).Value() }

// shareWith gives crd what it has in common with others of the spec.
func (s *internedSpec) shareWith(crd *apiextensions.CustomResourceDefinition) {
	if sameNames(&crd.Status.AcceptedNames, &s.internal.Names) {
		crd.Status.AcceptedNames = s.internal.Names
	}
	for i := range crd.Status.Conditions {
		c := &crd.Status.Conditions[i]
		c.Type = apiextensions.CustomResourceDefinitionConditionType(interned(string(c.Type)))
		c.Status = apiextensions.ConditionStatus(interned(string(c.Status)))
		c.Reason, c.Message = interned(c.Reason), interned(c.Message)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(crd.Status.StoredVersions, s.versions) {
		crd.Status.StoredVersions = s.versions
	} else {
		s.versions = slices.Clip(crd.Status.StoredVersions)
	}
	for i := range crd.ManagedFields {
		f := &crd.ManagedFields[i]
		if f.FieldsV1 == nil {
			continue
		}
		if known, ok := s.fields[f.FieldsV1.GetRawString()]; ok {
			f.FieldsV1 = known
		} else if len(s.fields) < manySets {
			s.fields[f.FieldsV1.GetRawString()] = f.FieldsV1
		}
	}
}

func renew[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// specOf returns the shared spec of a definition, or one of its own.
func (i *interner) specOf(crd *apiextensions.CustomResourceDefinition) *internedSpec {
	if crd.Spec.Conversion != nil {
		i.mu.Lock()
		known := i.byMark[weak.Make(crd.Spec.Conversion)].Value()
		i.mu.Unlock()
		if known != nil {
			return known
		}
	}
	return &internedSpec{internal: crd.Spec}
}

// sameNames reports whether names are the same, in the same order.
func sameNames(a, b *apiextensions.CustomResourceDefinitionNames) bool {
	return a.Plural == b.Plural && a.Singular == b.Singular && a.Kind == b.Kind && a.ListKind == b.ListKind &&
		slices.Equal(a.ShortNames, b.ShortNames) && slices.Equal(a.Categories, b.Categories)
}

// schemaOf interns the schema of a definition in table, with one more user.
func (i *interner) schemaOf(table *Table, crd *apiextensions.CustomResourceDefinition) (*Schema, error) {
	in, hash, err := i.specOf(crd).hashInput(&crd.Status.AcceptedNames)
	if err != nil {
		return nil, fmt.Errorf("definition %s: %w", crd.Name, err)
	}
	return table.internHashed(hash, in), nil
}

// hashInput returns what identifies the schema of the spec with names, and the
// hash of it.
func (s *internedSpec) hashInput(names *apiextensions.CustomResourceDefinitionNames) (hashInput, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.v1 == nil {
		var v1 specV1
		if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinitionSpec_To_v1_CustomResourceDefinitionSpec(&s.internal, &v1, nil); err != nil {
			return hashInput{}, "", fmt.Errorf("converting the spec: %w", err)
		}
		s.v1, s.hashes = &v1, map[string]string{}
	}
	own := sameNames(names, &s.internal.Names)
	if own && s.own != nil {
		return hashInput{Spec: s.v1, Names: &s.own.names}, s.own.hash, nil
	}
	var named namedHash
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinitionNames_To_v1_CustomResourceDefinitionNames(names, &named.names, nil); err != nil {
		return hashInput{}, "", fmt.Errorf("converting the names: %w", err)
	}
	in := hashInput{Spec: s.v1, Names: &named.names}
	key, err := json.Marshal(named.names)
	if err != nil {
		return hashInput{}, "", fmt.Errorf("hashing names: %w", err)
	}
	if hash, ok := s.hashes[string(key)]; ok {
		return in, hash, nil
	}
	if named.hash, err = in.hash(); err != nil {
		return hashInput{}, "", err
	}
	s.hashes[string(key)] = named.hash
	if own {
		s.own = &named
	}
	return in, named.hash, nil
}

// sharedFields lets the watch cache of definitions share the fields by which
// definitions of one name can be selected.
type sharedFields struct {
	generic.RESTOptionsGetter
}

// rememberedFields is of how many names.
const rememberedFields = 4096

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g sharedFields) GetRESTOptions(resource schema.GroupResource, example apiruntime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	inner, known := options.Decorator, lru.New(rememberedFields)
	options.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string, keyFunc func(apiruntime.Object) (string, error),
		newFunc, newListFunc func() apiruntime.Object, getAttrs storage.AttrFunc, trigger storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		attrs := func(obj apiruntime.Object) (labels.Set, fields.Set, error) {
			l, f, err := getAttrs(obj)
			if err != nil || len(f) > 2 || f["metadata.namespace"] != "" { // more than the name
				return l, f, err
			}
			name := f["metadata.name"]
			if set, ok := known.Get(name); ok {
				f, _ = set.(fields.Set)
			} else {
				known.Add(name, f)
			}
			return l, f, nil
		}
		return inner(config, prefix, keyFunc, newFunc, newListFunc, attrs, trigger, indexers)
	}
	return options, nil
}
