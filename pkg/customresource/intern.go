package customresource

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"unique"
	"weak"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
	byHash map[[sha256.Size]byte]weak.Pointer[internedSpec]
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

	mu     sync.Mutex
	v1     *specV1
	hashes map[string]string           // of schemas, by accepted names
	stored []string                    // stored versions
	fields map[string]*metav1.FieldsV1 // managed fields, by themselves
}

// manySets is of how many sets of managed fields of one spec there may be
// copies to share; equal definitions come from the same hands.
const manySets = 16

func newInterner() *interner {
	return &interner{
		byHash: map[[sha256.Size]byte]weak.Pointer[internedSpec]{},
		byMark: map[specMark]weak.Pointer[internedSpec]{},
	}
}

// known returns the shared spec with a hash, or nil.
func (i *interner) known(hash [sha256.Size]byte) *internedSpec {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.byHash[hash].Value()
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

// intern returns the shared spec with a hash, which is decoded if there is none.
func (i *interner) intern(hash [sha256.Size]byte, decoded *apiextensions.CustomResourceDefinitionSpec) *internedSpec {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known := i.byHash[hash].Value(); known != nil {
		return known
	}
	spec := &internedSpec{conversion: *decoded.Conversion, internal: *decoded, fields: map[string]*metav1.FieldsV1{}}
	spec.internal.Conversion = &spec.conversion
	// The conversion from v1 leaves a pointer into the whole decoded object.
	spec.internal.PreserveUnknownFields = renew(decoded.PreserveUnknownFields)
	mark := weak.Make(&spec.conversion)
	i.byHash[hash] = weak.Make(spec)
	i.byMark[mark] = weak.Make(spec)
	runtime.AddCleanup(spec, func(hash [sha256.Size]byte) { i.forget(hash, mark) }, hash)
	return spec
}

// forget removes a spec that nobody has any more.
func (i *interner) forget(hash [sha256.Size]byte, mark specMark) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byHash[hash].Value() == nil { // or it is another by now
		delete(i.byHash, hash)
	}
	delete(i.byMark, mark)
}

// size is how many specs there are.
func (i *interner) size() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.byHash)
}

// shareMetadata makes equal strings one.
func shareMetadata(m *metav1.ObjectMeta) {
	m.Name = shared(m.Name)
	for key, value := range m.Annotations {
		if len(value) > longValue { // what was last applied, as a whole
			m.Annotations[key] = shared(value)
		}
	}
	for i := range m.ManagedFields {
		f := &m.ManagedFields[i]
		f.Manager, f.APIVersion = shared(f.Manager), shared(f.APIVersion)
		f.FieldsType, f.Subresource = shared(f.FieldsType), shared(f.Subresource)
		f.Operation = metav1.ManagedFieldsOperationType(shared(string(f.Operation)))
	}
	for i, f := range m.Finalizers {
		m.Finalizers[i] = shared(f)
	}
}

// longValue is from where on it pays to look for an equal annotation.
const longValue = 128

func shared(s string) string { return unique.Make(s).Value() }

// shareWith gives crd what it has in common with others of the spec.
func (s *internedSpec) shareWith(crd *apiextensions.CustomResourceDefinition) {
	if equality.Semantic.DeepEqual(crd.Status.AcceptedNames, s.internal.Names) {
		crd.Status.AcceptedNames = s.internal.Names
	}
	for i := range crd.Status.Conditions {
		c := &crd.Status.Conditions[i]
		c.Type = apiextensions.CustomResourceDefinitionConditionType(shared(string(c.Type)))
		c.Status = apiextensions.ConditionStatus(shared(string(c.Status)))
		c.Reason, c.Message = shared(c.Reason), shared(c.Message)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(crd.Status.StoredVersions, s.stored) {
		crd.Status.StoredVersions = s.stored
	} else {
		s.stored = slices.Clip(crd.Status.StoredVersions)
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

// schemaOf interns the schema of a definition in table, with one more user.
func (i *interner) schemaOf(table *schemaTable, crd *apiextensions.CustomResourceDefinition) (*Schema, error) {
	spec := i.specOf(crd)
	var names apiextensionsv1.CustomResourceDefinitionNames
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinitionNames_To_v1_CustomResourceDefinitionNames(&crd.Status.AcceptedNames, &names, nil); err != nil {
		return nil, fmt.Errorf("converting the names of %s: %w", crd.Name, err)
	}
	in, hash, err := spec.hashInput(names)
	if err != nil {
		return nil, fmt.Errorf("definition %s: %w", crd.Name, err)
	}
	return table.internHashed(hash, in), nil
}

// hashInput returns what identifies the schema of the spec with names, and the
// hash of it.
func (s *internedSpec) hashInput(names apiextensionsv1.CustomResourceDefinitionNames) (hashInput, string, error) {
	key, err := json.Marshal(names)
	if err != nil {
		return hashInput{}, "", fmt.Errorf("hashing names: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.v1 == nil {
		var v1 specV1
		if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinitionSpec_To_v1_CustomResourceDefinitionSpec(&s.internal, &v1, nil); err != nil {
			return hashInput{}, "", fmt.Errorf("converting the spec: %w", err)
		}
		s.v1, s.hashes = &v1, map[string]string{}
	}
	in := hashInput{Spec: s.v1, Names: &names}
	if hash, ok := s.hashes[string(key)]; ok {
		return in, hash, nil
	}
	hash, err := in.hash()
	if err != nil {
		return hashInput{}, "", err
	}
	s.hashes[string(key)] = hash
	return in, hash, nil
}

// internCodec is the storage codec of definitions; it interns what it decodes.
// A spec that is known is not decoded again, which is nearly all there is to
// decode.
type internCodec struct {
	apiruntime.Codec
	interner *interner
}

// Decode implements runtime.Decoder.
func (c internCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into apiruntime.Object) (apiruntime.Object, *schema.GroupVersionKind, error) {
	from, to, ok := findSpec(data)
	if !ok || !bytes.Contains(data[:from], storedVersion) {
		return c.Codec.Decode(data, defaults, into)
	}
	hash := sha256.Sum256(data[from:to])
	spec := c.interner.known(hash)
	if spec != nil {
		data = slices.Concat(data[:from], []byte("{}"), data[to:])
	}
	obj, gvk, err := c.Codec.Decode(data, defaults, into)
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok || err != nil {
		return obj, gvk, err
	}
	if spec == nil {
		if crd.Spec.Conversion == nil {
			return obj, gvk, nil // nothing to tell it by
		}
		spec = c.interner.intern(hash, &crd.Spec)
	}
	spec.give(crd)
	return obj, gvk, nil
}

// storedVersion is how stored definitions that can be shared say what they are.
var storedVersion = []byte(`"apiVersion":"apiextensions.k8s.io/v1"`)

// findSpec finds the value of the field spec of a JSON object, without decoding
// it.
func findSpec(data []byte) (from, to int, ok bool) {
	depth, key := 0, 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			end := endOfString(data, i)
			if end < 0 {
				return 0, 0, false
			}
			if depth == 1 {
				key = i
			}
			i = end
		case ':':
			if depth == 1 && bytes.HasPrefix(data[key:], []byte(`"spec":{`)) {
				from = i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 1 && from > 0 {
				return from, i + 1, true
			}
		default:
		}
	}
	return 0, 0, false
}

// endOfString returns where the JSON string that starts at i ends.
func endOfString(data []byte, i int) int {
	for i++; ; i++ {
		quote := bytes.IndexByte(data[i:], '"')
		if quote < 0 {
			return -1
		}
		i += quote
		escapes := 0
		for data[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
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
