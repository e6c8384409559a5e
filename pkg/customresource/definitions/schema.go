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

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"

	"github.com/shardplane/shardplane/pkg/request/schemacosts"
)

// Convert returns an object in another API version, and leaves in as it is. It may be
// called at the same time, and with any object that somebody wrote. What it does with
// metadata but labels and annotations is not taken over.
type Convert func(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error)

// ConvertHost is the host of the conversion webhooks by which upstream has objects of a
// Schema with Convert converted: nobody is called there.
const ConvertHost = "schema.internal.shardplane.io"

// convertedBy is the conversion of the schema with a hash, as upstream knows it.
func convertedBy(hash string) *apiextensionsv1.CustomResourceConversion {
	url := "https://" + ConvertHost + "/" + hash
	return &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
		},
	}
}

// Projection shows the objects of one resource, which are stored, as objects of another
// one, to be read only: they are in the same watch cache, and have its versions. Its
// functions can be called concurrently.
type Projection struct {
	// Stored is the resource that is stored.
	Stored schema.GroupResource
	// Show returns what is shown of a stored object, which it may keep and change.
	Show func(stored *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// ShownName returns the name of what is shown of a stored object. It must be quick.
	ShownName func(stored *unstructured.Unstructured) string
	// StoredName returns the name of the object that a request sees under a name, or ""
	// if it sees none.
	StoredName func(ctx context.Context, shown string) (string, error)
}

// Schema is all that decides how a custom resource is served: the spec and the
// accepted names of a CustomResourceDefinition. It is immutable, and there is
// one for all logical clusters whose definitions agree in it.
type Schema struct {
	// Hash identifies the schema.
	Hash string
	// Resource is the resource that the schema serves.
	Resource schema.GroupResource
	// MetadataOnly is set for the schema under which a wildcard reads the
	// metadata of objects of any schema.
	MetadataOnly bool
	// Convert, if set, converts objects between the versions of the schema, whatever
	// its spec says of conversion.
	Convert Convert
	// Projection, if set, says that objects of another resource are shown under the
	// schema.
	Projection *Projection

	// crd is the synthetic definition for the upstream handler: its name and
	// UID are the hash, its conditions carry no times.
	crd *apiextensionsv1.CustomResourceDefinition
	// terminating is crd with the condition that forbids creation.
	terminating *apiextensionsv1.CustomResourceDefinition

	// costs are those of objects, by version.
	costs map[string]*schemacosts.Lazy
	// rules are their validation rules, by version.
	rules map[string]func() rules

	// refs and idleSince belong to the table.
	refs      int
	idleSince time.Time
}

// CRD returns the synthetic definition for the upstream handler. It is shared:
// do not change it.
func (s *Schema) CRD() *apiextensionsv1.CustomResourceDefinition { return s.crd }

// TerminatingCRD is CRD of a definition that is being deleted: it forbids
// creation.
func (s *Schema) TerminatingCRD() *apiextensionsv1.CustomResourceDefinition { return s.terminating }

// Spec returns the definition's spec. It is shared: do not change it.
func (s *Schema) Spec() *apiextensionsv1.CustomResourceDefinitionSpec { return &s.crd.Spec }

// Names returns the accepted names. They are shared: do not change them.
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
	for i := range s.crd.Spec.Versions {
		if v := &s.crd.Spec.Versions[i]; v.Storage {
			return v.Name
		}
	}
	return ""
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

// Costs returns what the schema of a version makes of objects, or nil if there is no such version.
func (s *Schema) Costs(version string) *schemacosts.Lazy { return s.costs[version] }

// RuleErrors returns the errors of the validation rules of a version for an object; old is nil for a new object.
func (s *Schema) RuleErrors(ctx context.Context, version string, object, old map[string]any) (field.ErrorList, error) {
	of := s.rules[version]
	if of == nil {
		return nil, nil
	}
	return of().errors(ctx, object, old)
}

// specV1 is the spec of a definition as clients write it.
type specV1 = apiextensionsv1.CustomResourceDefinitionSpec

// hashInput is what makes two schemas equal.
type hashInput struct {
	Spec         *apiextensionsv1.CustomResourceDefinitionSpec  `json:"spec"`
	Names        *apiextensionsv1.CustomResourceDefinitionNames `json:"names"`
	MetadataOnly bool                                           `json:"metadataOnly,omitempty"`
	// Converted tells what convert does from what others do.
	Converted string `json:"converted,omitempty"`
	convert   Convert
	// Projected is the resource that is stored, if it is another one.
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

// NewSchema makes a schema for a Source of one's own. spec and names are kept.
func NewSchema(spec *apiextensionsv1.CustomResourceDefinitionSpec, names *apiextensionsv1.CustomResourceDefinitionNames) (*Schema, error) {
	in := hashInput{Spec: spec, Names: names}
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return newSchema(hash, in), nil
}

// NewConvertedSchema is NewSchema with a function that converts between versions. What
// it does is told by converted: schemas with equal ones convert in the same way.
func NewConvertedSchema(spec *apiextensionsv1.CustomResourceDefinitionSpec, names *apiextensionsv1.CustomResourceDefinitionNames, converted string, convert Convert) (*Schema, error) {
	in := hashInput{Spec: spec, Names: names, Converted: converted, convert: convert}
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return newSchema(hash, in), nil
}

// newSchema makes the schema of a spec and accepted names, both of which it
// keeps. It does not serve printer columns above the limits.
func newSchema(hash string, in hashInput) *Schema {
	accepted := apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue,
	}
	established := apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: in.Names.Plural + "." + in.Spec.Group + "#" + hash[:16],
			UID:  types.UID(hash),
		},
		Spec: *in.Spec,
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			AcceptedNames: *in.Names,
			Conditions:    []apiextensionsv1.CustomResourceDefinitionCondition{accepted, established},
		},
	}
	crd.Spec.Versions = slices.Clone(crd.Spec.Versions)
	schemacosts.LimitColumns(crd.Spec.Versions)
	if in.Spec.Group == "" {
		tellDeprecated(&crd.Spec)
	}
	if in.convert != nil {
		crd.Spec.Conversion = convertedBy(hash)
	}
	terminating := *crd
	terminating.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		accepted, established,
		{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue},
	}
	costs := make(map[string]*schemacosts.Lazy, len(crd.Spec.Versions))
	rulesOf := make(map[string]func() rules, len(crd.Spec.Versions))
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		costs[version.Name], rulesOf[version.Name] = schemacosts.NewLazy(version), lazyRules(version)
	}
	return &Schema{
		costs:        costs,
		rules:        rulesOf,
		Hash:         hash,
		Resource:     schema.GroupResource{Group: in.Spec.Group, Resource: in.Names.Plural},
		MetadataOnly: in.MetadataOnly,
		Convert:      in.convert,
		Projection:   in.projection,
		crd:          crd,
		terminating:  &terminating,
	}
}

// tellDeprecated has the deprecated versions of the group "" say so, and which to use:
// what upstream says of itself is for groups that have a name.
func tellDeprecated(spec *specV1) {
	for i := range spec.Versions {
		v := &spec.Versions[i]
		if !v.Deprecated || v.DeprecationWarning != nil {
			continue
		}
		said, use := v.Name+" "+spec.Names.Kind+" is deprecated", v.Name
		for _, other := range spec.Versions {
			if other.Served && !other.Deprecated && version.CompareKubeAwareVersionStrings(use, other.Name) < 0 {
				use = other.Name
			}
		}
		if use != v.Name {
			said += "; use " + use + " " + spec.Names.Kind
		}
		v.DeprecationWarning = &said
	}
}

// Table interns schemas and counts who uses each: definitions and
// requests in flight. Schemas that nobody uses stay for a while, so that the
// next request finds their serving info, and are then swept.
type Table struct {
	mu     sync.Mutex
	byHash map[string]*Schema
	byName map[string]*Schema // by the synthetic definition's name
}

// NewTable returns a table without schemas.
func NewTable() *Table {
	return &Table{byHash: map[string]*Schema{}, byName: map[string]*Schema{}}
}

// intern returns the schema of in with one more user.
func (t *Table) intern(in hashInput) (*Schema, error) {
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return t.internHashed(hash, in), nil
}

// internHashed is intern for a hash that is known.
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

// transient returns the schema of in, which lives while it is being used.
func (t *Table) transient(in hashInput) (*Schema, error) {
	s, err := t.intern(in)
	if err == nil {
		t.Release(s, time.Now())
	}
	return s, err
}

// Acquire adds a user to s, also when it was swept in the meantime.
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

// Release takes a user from s.
func (t *Table) Release(s *Schema, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.refs--
	if s.refs == 0 {
		s.idleSince = now
	}
}

// ByName finds a schema by the name of its synthetic definition.
func (t *Table) ByName(name string) (*Schema, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.byName[name]
	return s, ok
}

// Definitions returns the synthetic definitions of all schemas in the table.
func (t *Table) Definitions() []*apiextensionsv1.CustomResourceDefinition {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(t.byName))
	for _, s := range t.byName {
		all = append(all, s.crd)
	}
	return all
}

// Sweep removes the schemas that nobody has used since before, and says how
// many it removed.
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

// NewMetadataSchema makes the schema under which a Source of one's own has a wildcard
// read the metadata of a resource in a version, whatever the schemas of the objects.
func NewMetadataSchema(like *Schema, version string) (*Schema, error) {
	in := metadataInput(like, version)
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return newSchema(hash, in), nil
}

// metadataInput is the schema under which the metadata of a resource is read in
// a version, whatever the schemas of the objects.
func metadataInput(like *Schema, version string) hashInput {
	preserve := true
	spec := &specV1{
		Group: like.crd.Spec.Group,
		Names: *like.Names(),
		// Also reads all of what has no namespaces.
		Scope: apiextensionsv1.NamespaceScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve},
			},
		}},
		Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
	}
	names := *like.Names()
	return hashInput{Spec: spec, Names: &names, MetadataOnly: true}
}

// NewProjectedSchema makes a schema, for a Source of one's own, under which objects of
// another resource are shown. spec and names are kept.
func NewProjectedSchema(crd *apiextensionsv1.CustomResourceDefinition, p *Projection) (*Schema, error) {
	apiextensionsserver.Scheme.Default(crd)
	in := hashInput{Spec: &crd.Spec, Names: &crd.Spec.Names, Projected: p.Stored.String(), projection: p}
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return newSchema(hash, in), nil
}

// Converts returns what converts by the path of a URL at ConvertHost, while the schema
// is in the table; nil for others.
func (t *Table) Converts(path string) Convert {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byHash[strings.TrimPrefix(path, "/")]; s != nil {
		return s.Convert
	}
	return nil
}
