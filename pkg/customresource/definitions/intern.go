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
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// interner shares the specs and other common parts of equal definitions. Otherwise, 1,000 definitions of the
// size of a large operator's need 0.5 GB. A shared spec lives as long as a definition that points to it.
type interner struct {
	mu        sync.Mutex
	seed      maphash.Seed
	byHash    map[uint64]weak.Pointer[internedSpec]
	byPointer map[specPointer]weak.Pointer[internedSpec]
}

// specPointer identifies a shared spec by the pointer to its conversion, which definitions contain.
type specPointer = weak.Pointer[apiextensions.CustomResourceConversion]

// internedSpec is a spec that many definitions share. It must not be changed.
type internedSpec struct {
	// conversion is referenced by the definitions, which keeps this spec alive.
	conversion apiextensions.CustomResourceConversion
	internal   apiextensions.CustomResourceDefinitionSpec
	stored     []byte // encoded spec

	mu       sync.Mutex
	v1       *specV1
	hashes   map[string]string           // of schemas, by accepted names
	versions []string                    // stored versions
	fields   map[string]*metav1.FieldsV1 // managed fields, by their encoding
	// violations are the violations of structural schemas, once checked is set.
	violations *apiextensions.CustomResourceDefinitionCondition
	checked    bool
}

// maxFieldSets limits the shared sets of managed fields per spec. Equal definitions usually have the same managers.
const maxFieldSets = 16

func newInterner() *interner {
	return &interner{
		seed:      maphash.MakeSeed(),
		byHash:    map[uint64]weak.Pointer[internedSpec]{},
		byPointer: map[specPointer]weak.Pointer[internedSpec]{},
	}
}

// known returns the interned spec for its encoding, or nil.
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

// apply replaces the spec of a definition by the equal shared one.
func (s *internedSpec) apply(crd *apiextensions.CustomResourceDefinition) {
	crd.Spec = s.internal
	// Not shared, because some conversions write through this pointer.
	crd.Spec.PreserveUnknownFields = renew(s.internal.PreserveUnknownFields)
	if len(crd.Status.StoredVersions) == 0 { // the default depends on the spec
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

// intern interns a spec, unless an equal one is already interned, and returns the interned one.
func (i *interner) intern(stored []byte, decoded *apiextensions.CustomResourceDefinitionSpec) *internedSpec {
	if known := i.known(stored); known != nil {
		return known
	}
	spec := &internedSpec{
		conversion: *decoded.Conversion, internal: *decoded,
		stored: bytes.Clone(stored), fields: map[string]*metav1.FieldsV1{},
	}
	spec.internal.Conversion = &spec.conversion
	// The conversion from v1 keeps a pointer into the decoded object.
	spec.internal.PreserveUnknownFields = renew(decoded.PreserveUnknownFields)
	hash, pointer := maphash.Bytes(i.seed, stored), weak.Make(&spec.conversion)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.byHash[hash] = weak.Make(spec)
	i.byPointer[pointer] = weak.Make(spec)
	runtime.AddCleanup(spec, func(hash uint64) { i.remove(hash, pointer) }, hash)
	return spec
}

func (i *interner) remove(hash uint64, pointer specPointer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byHash[hash].Value() == nil { // unless replaced by a new one
		delete(i.byHash, hash)
	}
	delete(i.byPointer, pointer)
}

func shareMetadata(m *metav1.ObjectMeta) {
	m.Name = interned(m.Name)
	for key, value := range m.Annotations {
		if len(value) > longValue { // e.g. the last applied configuration
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

// longValue is the minimum length of an annotation for interning.
const longValue = 128

func interned(s string) string { return unique.Make(s).Value() }

// shareWith shares status and managed fields with other definitions of the spec.
func (s *internedSpec) shareWith(crd *apiextensions.CustomResourceDefinition) {
	if apiequality.Semantic.DeepEqual(crd.Status.AcceptedNames, s.internal.Names) {
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
		} else if len(s.fields) < maxFieldSets {
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

// specOf returns the shared spec of a definition, or a new one.
func (i *interner) specOf(crd *apiextensions.CustomResourceDefinition) *internedSpec {
	if crd.Spec.Conversion != nil {
		i.mu.Lock()
		known := i.byPointer[weak.Make(crd.Spec.Conversion)].Value()
		i.mu.Unlock()
		if known != nil {
			return known
		}
	}
	return &internedSpec{internal: crd.Spec}
}

// schemaOf interns the schema of a definition in table, with an additional reference.
func (i *interner) schemaOf(table *Table, crd *apiextensions.CustomResourceDefinition) (*Schema, error) {
	in, hash, err := i.specOf(crd).hashInput(&crd.Status.AcceptedNames)
	if err != nil {
		return nil, fmt.Errorf("definition %s: %w", crd.Name, err)
	}
	return table.internHashed(hash, in), nil
}

// hashInput returns the input and the hash of the schema of the spec with names.
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
	in := hashInput{Spec: s.v1, Names: &apiextensionsv1.CustomResourceDefinitionNames{}}
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinitionNames_To_v1_CustomResourceDefinitionNames(names, in.Names, nil); err != nil {
		return hashInput{}, "", fmt.Errorf("converting the names: %w", err)
	}
	key, err := json.Marshal(in.Names)
	if err != nil {
		return hashInput{}, "", fmt.Errorf("hashing names: %w", err)
	}
	hash, ok := s.hashes[string(key)]
	if !ok {
		if hash, err = in.hash(); err != nil {
			return hashInput{}, "", err
		}
		s.hashes[string(key)] = hash
	}
	return in, hash, nil
}

// internCodec is the storage codec of definitions, which interns what it decodes. It finds the spec in the
// stored bytes, and does not decode it if it is already interned, because the spec is the largest part of
// a definition.
type internCodec struct {
	apiruntime.Codec
	interner *interner
}

func (c internCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into apiruntime.Object) (apiruntime.Object, *schema.GroupVersionKind, error) {
	from, to, ok := findSpec(data)
	if !ok {
		return c.Codec.Decode(data, defaults, into)
	}
	if spec := c.interner.known(data[from:to]); spec != nil {
		if crd, ok := decodeAround(data, from, to, into); ok {
			spec.apply(crd)
			gvk := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
			return crd, &gvk, nil
		}
	}
	obj, gvk, err := c.Codec.Decode(data, defaults, into)
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok || err != nil || crd.Spec.Conversion == nil || !json.Valid(data[from:to]) {
		return obj, gvk, err // cannot be shared
	}
	c.interner.intern(data[from:to], &crd.Spec).apply(crd)
	return obj, gvk, nil
}

// decodeAround decodes a definition without its spec.
func decodeAround(data []byte, from, to int, into apiruntime.Object) (*apiextensions.CustomResourceDefinition, bool) {
	var stored struct {
		Metadata metav1.ObjectMeta                              `json:"metadata"`
		Status   apiextensionsv1.CustomResourceDefinitionStatus `json:"status"`
	}
	around := slices.Concat(data[:from], []byte("{}"), data[to:])
	if utiljson.Unmarshal(around, &stored) != nil {
		return nil, false
	}
	crd, ok := into.(*apiextensions.CustomResourceDefinition)
	if into != nil && !ok {
		return nil, false
	}
	if crd == nil {
		crd = &apiextensions.CustomResourceDefinition{}
	}
	*crd = apiextensions.CustomResourceDefinition{ObjectMeta: stored.Metadata}
	err := apiextensionsv1.Convert_v1_CustomResourceDefinitionStatus_To_apiextensions_CustomResourceDefinitionStatus(&stored.Status, &crd.Status, nil)
	return crd, err == nil
}

// The encoding of stored definitions, which have ordered fields.
var (
	storedStart  = []byte(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",`)
	storedSpec   = []byte(`,"spec":{`)
	storedStatus = []byte(`,"status":{`)
)

// findSpec finds the value of the field spec of a stored definition without decoding it. It searches for the
// bytes that precede and follow the field. The result is the spec if it is valid JSON, which the caller must
// check once.
func findSpec(data []byte) (from, to int, ok bool) {
	if !bytes.HasPrefix(data, storedStart) {
		return 0, 0, false
	}
	from, to = bytes.Index(data, storedSpec), bytes.LastIndex(data, storedStatus)
	if from < 0 || to < from {
		return 0, 0, false
	}
	from += len(storedSpec) - 1
	return from, to, to > from && !bytes.Contains(data[to:], storedSpec)
}
