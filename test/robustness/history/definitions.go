package history

import (
	"fmt"
	"slices"
	"time"
)

// Definition is a request for a CustomResourceDefinition. One client sends all requests for a
// definition, one at a time.
type Definition struct {
	ID int
	// Server is the shard, Cluster the logical cluster, and Name the name of the definition.
	Server, Cluster, Name string
	Kind                  Kind
	// Names are the names that the definition claims in its logical cluster. Variant identifies its
	// schema if the response contains it.
	Names      []string
	Variant    string
	Start, End int64
	// Outcome is OK, NotFound, Conflict, Refused or Unknown.
	Outcome Outcome
	// Established and Accepted are conditions, and Terminating is true if the definition is being
	// deleted. They are set from responses with the outcome OK.
	Established, Accepted, Terminating bool
}

// Refused is the outcome of an invalid request. It has no effect.
const Refused Outcome = "refused"

func (d *Definition) String() string {
	return fmt.Sprintf("%s %d of definition %s in %s", d.Kind, d.ID, d.Name, d.Cluster)
}

// Use is a request for the resource of a definition. Code is its status code, and Variant the
// schema that the response shows, if any.
type Use struct {
	ID                          int
	Server, Cluster, Definition string
	Start, End                  int64
	Code                        int
	Variant                     string
}

func (u *Use) String() string {
	return fmt.Sprintf("use %d of definition %s in %s", u.ID, u.Definition, u.Cluster)
}

// cleanupTime is the maximum delay until effects of a deleted definition end on all replicas of a
// shard.
const cleanupTime = int64(5 * time.Second)

type definitionCheck struct {
	*reporter

	all []*Definition
}

// checkDefinitions checks that established definitions are served with their schema, and that names
// are only rejected if another definition may have them.
func checkDefinitions(r *reporter, h *History) {
	c := &definitionCheck{r, slices.Clone(h.Definitions)}
	slices.SortFunc(c.all, func(a, b *Definition) int { return int(a.Start - b.Start) })
	for _, u := range h.Uses {
		c.use(u)
	}
	for _, p := range h.Probes {
		if p.Want != 0 && p.Code != p.Want {
			r.report(DefinitionsServed, text(p.Name), "status %d, expected %d", p.Code, p.Want)
		}
	}
	for _, d := range c.all {
		if d.Outcome == OK && !d.Accepted && !d.Terminating && !c.nameConflict(d) {
			r.report(NamesFree, d, "its names %v are not accepted, although no other definition has one of them", d.Names)
		}
	}
}

// use checks the response to a use against the latest response for its definition. The result is
// undefined while a request for the definition is pending.
func (c *definitionCheck) use(u *Use) {
	var latest *Definition
	for _, d := range c.all {
		if d.Server != u.Server || d.Cluster != u.Cluster || d.Name != u.Definition || d.Start > u.End || d.Outcome == Refused {
			continue
		}
		latest = d
	}
	if latest == nil || latest.End > u.Start {
		return
	}
	switch {
	case latest.Outcome == NotFound && u.Code < 300 && u.Start-latest.End > cleanupTime:
		c.report(DefinitionsServed, u, "status %d, although %s did not find the definition", u.Code, latest)
	case latest.Outcome != OK || !latest.Established || latest.Terminating || latest.Kind == Delete:
	case u.Code == 404:
		c.report(DefinitionsServed, u, "status 404 after %s, which was established", latest)
	case u.Variant != "" && latest.Variant != "" && u.Variant != latest.Variant:
		c.report(DefinitionsServed, u, "schema %s, expected %s because of %s", u.Variant, latest.Variant, latest)
	}
}

// nameConflict reports whether another definition may have had one of the names of d when the
// request for d got its response, or shortly before.
func (c *definitionCheck) nameConflict(d *Definition) bool {
	owners := map[string]bool{}
	for _, other := range c.all {
		if other.Server != d.Server || other.Cluster != d.Cluster || other.Name == d.Name || other.Start > d.End || other.Outcome == Refused {
			continue
		}
		switch {
		case other.Outcome == NotFound && d.Start-other.End > cleanupTime:
			delete(owners, other.Name)
		case slices.ContainsFunc(other.Names, func(name string) bool { return slices.Contains(d.Names, name) }) && (other.Kind == Create || other.Kind == Update):
			owners[other.Name] = true
		}
	}
	return len(owners) > 0
}
