package definitions

import (
	"maps"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// nameScope is the scope in which names must be unique.
type nameScope struct {
	cluster logicalcluster.Name
	group   string
}

// claims are the names in use in a scope.
type claims struct {
	resources, kinds owners
}

// owners maps names to their owners, for messages.
type owners map[string]string

func newClaims() claims { return claims{resources: owners{}, kinds: owners{}} }

// add adds names that are not yet in use.
func (c claims) add(n *apiextensions.CustomResourceDefinitionNames, owner string) {
	c.resources.add(owner, n.Plural, n.Singular)
	c.resources.add(owner, n.ShortNames...)
	c.kinds.add(owner, n.Kind, n.ListKind)
}

func (u owners) add(owner string, names ...string) {
	for _, name := range names {
		if name != "" && !u.Has(name) {
			u[name] = owner
		}
	}
}

func (u owners) Has(name string) bool {
	_, used := u[name]
	return used
}

// conflict returns a name that is in both, and its owner in u.
func (u owners) conflict(other owners) (name, owner string, found bool) {
	for _, name := range slices.Sorted(maps.Keys(other)) {
		if owner, used := u[name]; used {
			return name, owner, true
		}
	}
	return "", "", false
}

// conflict returns one of the names that is in use, and its owner.
func (c claims) conflict(n *apiextensions.CustomResourceDefinitionNames) (name, owner string, found bool) {
	wanted := newClaims()
	wanted.add(n, "")
	if name, owner, found = c.resources.conflict(wanted.resources); found {
		return name, owner, true
	}
	return c.kinds.conflict(wanted.kinds)
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
