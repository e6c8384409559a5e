package definitions

import (
	"maps"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// nameScope is what names must be unique in.
type nameScope struct {
	cluster logicalcluster.Name
	group   string
}

// claims are the names in use in a scope, with who uses them.
type claims struct {
	resources, kinds users
}

// users are those of names.
type users map[string]string

func newClaims() claims { return claims{resources: users{}, kinds: users{}} }

// add notes that somebody uses names. Who does so first stays.
func (c claims) add(n *apiextensions.CustomResourceDefinitionNames, by string) {
	c.resources.add(by, n.Plural, n.Singular)
	c.resources.add(by, n.ShortNames...)
	c.kinds.add(by, n.Kind, n.ListKind)
}

func (u users) add(by string, names ...string) {
	for _, name := range names {
		if name != "" && !u.Has(name) {
			u[name] = by
		}
	}
}

// Has reports whether a name is in use.
func (u users) Has(name string) bool {
	_, used := u[name]
	return used
}

// conflict returns a name that is in use in both, with its user in u.
func (u users) conflict(other users) (name, by string, found bool) {
	for _, name := range slices.Sorted(maps.Keys(other)) {
		if by, used := u[name]; used {
			return name, by, true
		}
	}
	return "", "", false
}

// conflict returns a name that is in use in both, with its user in c.
func (c claims) conflict(other claims) (name, by string, found bool) {
	if name, by, found = c.resources.conflict(other.resources); found {
		return name, by, true
	}
	return c.kinds.conflict(other.kinds)
}

// Wanted are names that a source other than CustomResourceDefinitions is about to
// serve.
type Wanted struct {
	Group string
	Names *apiextensionsv1.CustomResourceDefinitionNames
}

// Conflict is a name that is in use.
type Conflict struct {
	// Name is a resource, singular, short name, kind or list kind of Group.
	Group, Name string
	// By says who uses it, for messages.
	By string
}

// conflict returns a name that is taken, or nil.
func (w *Wanted) conflict(taken claims) *Conflict {
	ours := newClaims()
	ours.add(internalNames(w.Names), "")
	if name, by, found := taken.conflict(ours); found {
		return &Conflict{Group: w.Group, Name: name, By: by}
	}
	return nil
}

// internalNames are names as the storage of definitions has them, without categories,
// which need not be free.
func internalNames(n *apiextensionsv1.CustomResourceDefinitionNames) *apiextensions.CustomResourceDefinitionNames {
	return &apiextensions.CustomResourceDefinitionNames{
		Plural: n.Plural, Singular: n.Singular, ShortNames: n.ShortNames, Kind: n.Kind, ListKind: n.ListKind,
	}
}

func equalNames(a, b *apiextensions.CustomResourceDefinitionNames) bool {
	return a.Plural == b.Plural && a.Singular == b.Singular && a.Kind == b.Kind && a.ListKind == b.ListKind &&
		sets.New(a.ShortNames...).Equal(sets.New(b.ShortNames...))
}
