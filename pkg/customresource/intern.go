package customresource

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/lru"
)

// internedSpecs bounds how many distinct specs are shared; definitions beyond
// it cost their own memory.
const internedSpecs = 4096

// interner shares the specs of equal definitions. A thousand definitions of
// the size of a large operator's cost half a gigabyte otherwise.
type interner struct {
	byHash     *lru.Cache // [sha256.Size]byte to *internedSpec
	byVersions *lru.Cache // *apiextensions.CustomResourceDefinitionVersion to *internedSpec
}

// internedSpec is a spec that many definitions share. Nobody may change it.
type internedSpec struct {
	internal apiextensions.CustomResourceDefinitionSpec

	mu     sync.Mutex
	v1     *specV1
	hashes map[string]string // of schemas, by accepted names
}

func newInterner() *interner {
	return &interner{byHash: lru.New(internedSpecs), byVersions: lru.New(internedSpecs)}
}

// share replaces the spec of a definition that was decoded from JSON by an
// equal one that others use too.
func (i *interner) share(crd *apiextensions.CustomResourceDefinition, data []byte) {
	var stored struct {
		Spec json.RawMessage `json:"spec"`
	}
	if len(crd.Spec.Versions) == 0 || json.Unmarshal(data, &stored) != nil || len(stored.Spec) == 0 {
		return
	}
	hash := sha256.Sum256(stored.Spec)
	if known, ok := i.byHash.Get(hash); ok {
		spec, _ := known.(*internedSpec)
		crd.Spec = spec.internal
		// The pointer is written through by some conversions; each has its own.
		crd.Spec.PreserveUnknownFields = renew(spec.internal.PreserveUnknownFields)
		return
	}
	// The conversion from v1 leaves a pointer into the whole decoded object.
	crd.Spec.PreserveUnknownFields = renew(crd.Spec.PreserveUnknownFields)
	spec := &internedSpec{internal: crd.Spec}
	i.byHash.Add(hash, spec)
	i.byVersions.Add(&crd.Spec.Versions[0], spec)
}

func renew[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// schemaOf interns the schema of a definition in table, with one more user.
func (i *interner) schemaOf(table *schemaTable, crd *apiextensions.CustomResourceDefinition) (*Schema, error) {
	spec := &internedSpec{internal: crd.Spec}
	if len(crd.Spec.Versions) > 0 {
		if known, ok := i.byVersions.Get(&crd.Spec.Versions[0]); ok {
			spec, _ = known.(*internedSpec)
		}
	}
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
type internCodec struct {
	runtime.Codec
	interner *interner
}

// Decode implements runtime.Decoder.
func (c internCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := c.Codec.Decode(data, defaults, into)
	if crd, ok := obj.(*apiextensions.CustomResourceDefinition); ok && err == nil {
		c.interner.share(crd, data)
	}
	return obj, gvk, err
}
