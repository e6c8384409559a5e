package definitions

import (
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// nameScope is the scope in which names must be unique.
type nameScope struct {
	cluster logicalcluster.Name
	group   string
}

// claim is a name of a resource, or of a kind.
type claim struct {
	isKind bool
	name   string
}

// claims maps the names in use in a scope to their owners, for messages.
type claims map[claim]string

// claimsOf returns the names, beginning with the names of resources.
func claimsOf(n *apiextensions.CustomResourceDefinitionNames) []claim {
	names := slices.Sorted(slices.Values(slices.Concat([]string{n.Plural, n.Singular}, n.ShortNames)))
	all := make([]claim, 0, len(names)+2)
	for _, name := range names {
		all = append(all, claim{name: name})
	}
	all = append(all, claim{true, min(n.Kind, n.ListKind)}, claim{true, max(n.Kind, n.ListKind)})
	return slices.DeleteFunc(all, func(c claim) bool { return c.name == "" })
}

// add adds names that are not yet in use.
func (c claims) add(n *apiextensions.CustomResourceDefinitionNames, owner string) {
	for _, name := range claimsOf(n) {
		if !c.has(name) {
			c[name] = owner
		}
	}
}

func (c claims) has(name claim) bool {
	_, used := c[name]
	return used
}

// conflict returns the first of the names that is in use, and its owner.
func (c claims) conflict(n *apiextensions.CustomResourceDefinitionNames) (name, owner string, found bool) {
	for _, wanted := range claimsOf(n) {
		if owner, used := c[wanted]; used {
			return wanted.name, owner, true
		}
	}
	return "", "", false
}

// Wanted are names that a source other than CustomResourceDefinitions is about to serve.
type Wanted struct {
	Group string
	Names *apiextensionsv1.CustomResourceDefinitionNames
}

// Conflict is a name that is in use.
type Conflict struct {
	// Name is a resource, singular, short name, kind or list kind of Group.
	Group, Name string
	// By describes the owner of the name for messages.
	By string
}

func (w *Wanted) conflict(taken claims) *Conflict {
	if name, owner, found := taken.conflict(internalNames(w.Names)); found {
		return &Conflict{Group: w.Group, Name: name, By: owner}
	}
	return nil
}

// internalNames converts names without categories, which need not be unique.
func internalNames(n *apiextensionsv1.CustomResourceDefinitionNames) *apiextensions.CustomResourceDefinitionNames {
	return &apiextensions.CustomResourceDefinitionNames{
		Plural: n.Plural, Singular: n.Singular, ShortNames: n.ShortNames, Kind: n.Kind, ListKind: n.ListKind,
	}
}

func equalNames(a, b *apiextensions.CustomResourceDefinitionNames) bool {
	return a.Plural == b.Plural && a.Singular == b.Singular && a.Kind == b.Kind && a.ListKind == b.ListKind &&
		sets.New(a.ShortNames...).Equal(sets.New(b.ShortNames...))
}

// nonStructural returns the condition with the violations of structural schemas in a spec, or nil. Such
// definitions cannot be created, but may be stored by an earlier version or another server.
func nonStructural(spec *apiextensions.CustomResourceDefinitionSpec) *apiextensions.CustomResourceDefinitionCondition {
	condition := &apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.NonStructuralSchema, Status: apiextensions.ConditionTrue, Reason: "Violations",
	}
	var violations field.ErrorList
	if p := spec.PreserveUnknownFields; p != nil && *p {
		violations = append(violations, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	of := &apiextensions.CustomResourceDefinition{Spec: *spec}
	for i := range spec.Versions {
		version := spec.Versions[i].Name
		validation, err := apiextensions.GetSchemaForVersion(of, version)
		if err != nil || validation == nil || validation.OpenAPIV3Schema == nil {
			continue
		}
		structural, err := structuralschema.NewStructural(validation.OpenAPIV3Schema)
		if err != nil {
			condition.Status, condition.Reason = apiextensions.ConditionUnknown, "StructuralError"
			condition.Message = fmt.Sprintf("failed to check validation schema for version %s: %v", version, err)
			return condition
		}
		path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		violations = append(violations, structuralschema.ValidateStructural(path, structural)...)
	}
	if len(violations) == 0 {
		return nil
	}
	condition.Message = violations.ToAggregate().Error()
	return condition
}

// nonStructural caches nonStructural of a shared spec.
func (s *internedSpec) nonStructural() *apiextensions.CustomResourceDefinitionCondition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.checked {
		s.violations, s.checked = nonStructural(&s.internal), true
	}
	return s.violations
}

// setNonStructural sets or removes the condition of a definition.
func setNonStructural(crd *apiextensions.CustomResourceDefinition, c *apiextensions.CustomResourceDefinitionCondition) {
	if c != nil {
		setCondition(crd, *c)
	} else if apiextensions.FindCRDCondition(crd, apiextensions.NonStructuralSchema) != nil {
		apiextensions.RemoveCRDCondition(crd, apiextensions.NonStructuralSchema)
	}
}

func hasNonStructural(crd *apiextensions.CustomResourceDefinition, want *apiextensions.CustomResourceDefinitionCondition) bool {
	have := apiextensions.FindCRDCondition(crd, apiextensions.NonStructuralSchema)
	if have == nil || want == nil {
		return have == nil && want == nil
	}
	return have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message
}

// setCondition sets a condition, and its transition time if the status changes.
func setCondition(crd *apiextensions.CustomResourceDefinition, c apiextensions.CustomResourceDefinitionCondition) {
	crd.Status.Conditions = slices.Clone(crd.Status.Conditions) // may be shared
	apiextensions.SetCRDCondition(crd, c)
}

func newCondition(
	t apiextensions.CustomResourceDefinitionConditionType, status apiextensions.ConditionStatus, reason, message string,
) apiextensions.CustomResourceDefinitionCondition {
	return apiextensions.CustomResourceDefinitionCondition{Type: t, Status: status, Reason: reason, Message: message}
}
