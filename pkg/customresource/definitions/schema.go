package definitions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"

	"github.com/shardplane/shardplane/pkg/request/schemacosts"
)

// Convert converts any object that a client may have written to another API version, without changing in. It must
// support concurrent calls. Of the metadata, only changed labels and annotations are used.
type Convert func(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error)

// ConvertHost is the host in the conversion webhook of schemas with Convert. Its calls stay in this process.
const ConvertHost = "schema.internal.shardplane.io"

// conversionFor returns the conversion for upstream of the schema with a hash.
func conversionFor(hash string) *apiextensionsv1.CustomResourceConversion {
	url := "https://" + ConvertHost + "/" + hash
	return &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
		},
	}
}

// Projection serves the objects of a stored resource as read-only objects of another resource, from the same
// watch cache and with the same resource versions. Its functions must support concurrent calls.
type Projection struct {
	Stored schema.GroupResource
	// Show converts a stored object, which it may keep and change.
	Show func(stored *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// ShownName returns the name of the converted object. It must be fast.
	ShownName func(stored *unstructured.Unstructured) string
	// StoredName returns the name of the stored object for the name in a request, or "" if there is none.
	StoredName func(ctx context.Context, shown string) (string, error)
}

// Schema contains the spec and accepted names of a CustomResourceDefinition, which determine how a custom
// resource is served. It is immutable and shared by all logical clusters with equal definitions.
type Schema struct {
	Hash     string // identifies the schema
	Resource schema.GroupResource
	// MetadataOnly is set for the schema of wildcard requests for metadata of any schema.
	MetadataOnly bool
	// Convert, if set, replaces the conversion in the spec. ConvertMayFail is set if it must be called before each
	// write, because admission does not know whether it fails.
	Convert        Convert
	ConvertMayFail bool
	// Projection, if set, converts stored objects of another resource.
	Projection *Projection

	// crd is the synthetic definition for the upstream handler. Its name and UID are the hash, and its
	// conditions have no times.
	crd *apiextensionsv1.CustomResourceDefinition
	// costs and rules are the costs of objects, and their validation, by version.
	costs map[string]*schemacosts.Lazy
	rules map[string]func() (*Rules, error)

	// refs and idleSince are guarded by the table.
	refs      int
	idleSince time.Time
}

// CRD returns the synthetic definition for the upstream handler. It is shared and must not be changed.
func (s *Schema) CRD() *apiextensionsv1.CustomResourceDefinition { return s.crd }

// TerminatingCRD returns CRD with the condition of a definition that is being deleted, which forbids creation.
func (s *Schema) TerminatingCRD() *apiextensionsv1.CustomResourceDefinition {
	crd := *s.crd
	crd.Status.Conditions = append(slices.Clip(crd.Status.Conditions), apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue,
	})
	return &crd
}

// Spec returns the spec. It is shared and must not be changed.
func (s *Schema) Spec() *apiextensionsv1.CustomResourceDefinitionSpec { return &s.crd.Spec }

// Names returns the accepted names. They are shared and must not be changed.
func (s *Schema) Names() *apiextensionsv1.CustomResourceDefinitionNames {
	return &s.crd.Status.AcceptedNames
}

// Serves reports whether the schema serves an API version.
func (s *Schema) Serves(version string) bool {
	v := s.Version(version)
	return v != nil && v.Served
}

// StoredVersion returns the version in which objects are stored, or "".
func (s *Schema) StoredVersion() string {
	version, _ := apihelpers.GetCRDStorageVersion(s.crd) // an error if there is none
	return version
}

// Version returns a version by name, or nil.
func (s *Schema) Version(name string) *apiextensionsv1.CustomResourceDefinitionVersion {
	for i := range s.crd.Spec.Versions {
		if v := &s.crd.Spec.Versions[i]; v.Name == name {
			return v
		}
	}
	return nil
}

// Costs returns the cost of objects in a version, or nil if there is no such version.
func (s *Schema) Costs(version string) *schemacosts.Lazy { return s.costs[version] }

// Rules returns the validation of objects in a version, or nil if it has no schema.
func (s *Schema) Rules(version string) (*Rules, error) {
	if of := s.rules[version]; of != nil {
		return of()
	}
	return nil, nil
}

type specV1 = apiextensionsv1.CustomResourceDefinitionSpec

// hashInput identifies a schema.
type hashInput struct {
	Spec         *apiextensionsv1.CustomResourceDefinitionSpec  `json:"spec"`
	Names        *apiextensionsv1.CustomResourceDefinitionNames `json:"names"`
	MetadataOnly bool                                           `json:"metadataOnly,omitempty"`
	// Converted identifies the function convert of objects, except for system definitions.
	Converted string `json:"converted,omitempty"`
	convert   Convert
	// Projected is the stored resource, if it differs.
	Projected  string `json:"projected,omitempty"`
	projection *Projection
}

func (in hashInput) hash() (string, error) {
	data, err := json.Marshal(in)
	if err != nil {
		return "", fmt.Errorf("hashing the definition of %s.%s: %w", in.Spec.Names.Plural, in.Spec.Group, err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// NewSchema returns a schema for a Source with its own schemas. It keeps spec and names.
func NewSchema(spec *apiextensionsv1.CustomResourceDefinitionSpec, names *apiextensionsv1.CustomResourceDefinitionNames) (*Schema, error) {
	return hashInput{Spec: spec, Names: names}.newSchema()
}

// NewConvertedSchema is NewSchema with a conversion function, which converted identifies.
func NewConvertedSchema(spec *apiextensionsv1.CustomResourceDefinitionSpec, names *apiextensionsv1.CustomResourceDefinitionNames, converted string, convert Convert) (*Schema, error) {
	return hashInput{Spec: spec, Names: names, Converted: converted, convert: convert}.newSchema()
}

func (in hashInput) newSchema() (*Schema, error) {
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return newSchema(hash, in), nil
}

// newSchema returns the schema of a spec and accepted names, both of which it keeps. It removes printer
// columns above the limits.
func newSchema(hash string, in hashInput) *Schema {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: in.Names.Plural + "." + in.Spec.Group + "#" + hash[:16],
			UID:  types.UID(hash),
		},
		Spec: *in.Spec,
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			AcceptedNames: *in.Names,
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			},
		},
	}
	crd.Spec.Versions = slices.Clone(crd.Spec.Versions)
	schemacosts.LimitColumns(crd.Spec.Versions)
	if in.Spec.Group == "" {
		addDeprecationWarnings(&crd.Spec)
	}
	if in.convert != nil {
		crd.Spec.Conversion = conversionFor(hash)
	}
	s := &Schema{
		costs:          make(map[string]*schemacosts.Lazy, len(crd.Spec.Versions)),
		rules:          make(map[string]func() (*Rules, error), len(crd.Spec.Versions)),
		Hash:           hash,
		Resource:       schema.GroupResource{Group: in.Spec.Group, Resource: in.Names.Plural},
		MetadataOnly:   in.MetadataOnly,
		Convert:        in.convert,
		ConvertMayFail: in.Converted != "",
		Projection:     in.projection,
		crd:            crd,
	}
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		// Compiled on first use, because rules are rarely used and upstream compiles them as well.
		s.costs[version.Name], s.rules[version.Name] = schemacosts.NewLazy(version), sync.OnceValues(func() (*Rules, error) { return newRules(version) })
	}
	return s
}

// addDeprecationWarnings sets the warnings of deprecated versions in the core group, because upstream's
// default requires a group.
func addDeprecationWarnings(spec *specV1) {
	for i := range spec.Versions {
		v := &spec.Versions[i]
		if !v.Deprecated || v.DeprecationWarning != nil {
			continue
		}
		warning, use := v.Name+" "+spec.Names.Kind+" is deprecated", v.Name
		for _, other := range spec.Versions {
			if other.Served && !other.Deprecated && version.CompareKubeAwareVersionStrings(use, other.Name) < 0 {
				use = other.Name
			}
		}
		if use != v.Name {
			warning += "; use " + use + " " + spec.Names.Kind
		}
		v.DeprecationWarning = &warning
	}
}

// Table interns schemas and counts their users, i.e. definitions and requests. Unused schemas are kept for a
// while, together with their serving info, until Sweep removes them.
type Table struct {
	mu     sync.Mutex
	byHash map[string]*Schema
	byName map[string]*Schema // by the name of the synthetic definition
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{byHash: map[string]*Schema{}, byName: map[string]*Schema{}}
}

// intern returns the schema of in with an additional reference.
func (t *Table) intern(in hashInput) (*Schema, error) {
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return t.internHashed(hash, in), nil
}

func (t *Table) internHashed(hash string, in hashInput) *Schema {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.byHash[hash]; ok {
		s.refs++
		return s
	}
	s := newSchema(hash, in)
	t.addLocked(s)
	return s
}

// Acquire adds a reference to s, and adds it to the table again if it was swept.
func (t *Table) Acquire(s *Schema) *Schema {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.byHash[s.Hash]; ok {
		known.refs++
		return known
	}
	t.addLocked(s)
	return s
}

func (t *Table) addLocked(s *Schema) {
	s.refs = 1
	t.byHash[s.Hash] = s
	t.byName[s.crd.Name] = s
}

// Release removes a reference from s.
func (t *Table) Release(s *Schema, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.refs--
	if s.refs == 0 {
		s.idleSince = now
	}
}

// ByName returns the schema with the name of a synthetic definition.
func (t *Table) ByName(name string) (*Schema, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.byName[name]
	return s, ok
}

// Definitions returns the synthetic definitions of all schemas.
func (t *Table) Definitions() []*apiextensionsv1.CustomResourceDefinition {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(t.byName))
	for _, s := range t.byName {
		all = append(all, s.crd)
	}
	return all
}

// Sweep removes the schemas that have been unused since before, and returns their number.
func (t *Table) Sweep(before time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	removed := 0
	for hash, s := range t.byHash {
		if s.refs == 0 && s.idleSince.Before(before) {
			delete(t.byHash, hash)
			delete(t.byName, s.crd.Name)
			removed++
		}
	}
	return removed
}

// NewMetadataSchema returns the schema for wildcard reads of the metadata of a resource in a version, for a
// Source with its own schemas.
func NewMetadataSchema(like *Schema, version string) (*Schema, error) {
	return metadataInput(like, version).newSchema()
}

// metadataInput identifies the schema for metadata of a resource in a version, independent of the schemas of
// the objects.
func metadataInput(like *Schema, version string) hashInput {
	names := *like.Names()
	spec := &specV1{
		Group: like.crd.Spec.Group,
		Names: names,
		// Also reads cluster-scoped objects.
		Scope: apiextensionsv1.NamespaceScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)},
			},
		}},
		Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
	}
	return hashInput{Spec: spec, Names: &names, MetadataOnly: true}
}

// NewProjectedSchema returns the schema of a projection for a Source with its own schemas. It keeps and defaults crd.
func NewProjectedSchema(crd *apiextensionsv1.CustomResourceDefinition, p *Projection) (*Schema, error) {
	apiextensionsserver.Scheme.Default(crd)
	return hashInput{Spec: &crd.Spec, Names: &crd.Spec.Names, Projected: p.Stored.String(), projection: p}.newSchema()
}

// Converts returns the conversion function for the path of a URL at ConvertHost, or nil if the schema is not
// in the table.
func (t *Table) Converts(path string) Convert {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byHash[strings.TrimPrefix(path, "/")]; s != nil {
		return s.Convert
	}
	return nil
}
