package history

import (
	"fmt"
	"slices"
	"time"
)

// Definition is a request about a definition of custom resources. All requests
// about one are one client's, one after the other.
type Definition struct {
	ID int
	// Server is the shard, Cluster the logical cluster, Name that of the definition.
	Server, Cluster, Name string
	Kind                  Kind
	// Names are those that the definition claims among all of its logical cluster,
	// and Variant tells its schema from others, if the answers can.
	Names      []string
	Variant    string
	Start, End int64
	// Outcome is OK, NotFound, Conflict, Refused or Unknown.
	Outcome Outcome
	// Established and Accepted are the conditions, and Terminating whether it is
	// being deleted, as an answer that is OK has them.
	Established, Accepted, Terminating bool
}

// Refused is the outcome of a request about a definition that has no effect.
const Refused Outcome = "refused"

func (d *Definition) String() string {
	return fmt.Sprintf("%s %d of definition %s in %s", d.Kind, d.ID, d.Name, d.Cluster)
}

// Use is a request for the resource of a definition, and the status code that it
// was answered with. Variant is that of the schema that answered, where it shows.
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

// cleanupTime is how long what a definition leaves behind may take to go, also
// where one replica of a shard has it from another.
const cleanupTime = int64(5 * time.Second)

// definitionCheck holds what definitions promise.
type definitionCheck struct {
	all        []*Definition
	violations []Violation
}

// checkDefinitions holds that what was acknowledged is served, with its schema,
// and that nobody is refused a name that no definition has.
func checkDefinitions(h *History) []Violation {
	c := &definitionCheck{all: slices.Clone(h.Definitions)}
	slices.SortFunc(c.all, func(a, b *Definition) int { return int(a.Start - b.Start) })
	for _, u := range h.Uses {
		c.use(u)
	}
	for _, p := range h.Probes {
		if p.Want != 0 && p.Code != p.Want {
			c.violations = append(c.violations, Violation{DefinitionsServed, p.Name, fmt.Sprintf("it was answered %d and must be %d", p.Code, p.Want)})
		}
	}
	for _, d := range c.all {
		if d.Outcome == OK && !d.Accepted && !d.Terminating && !c.taken(d) {
			c.violations = append(c.violations, Violation{NamesFree, d.String(),
				fmt.Sprintf("its names %v are taken, and no other definition has one of them", d.Names)})
		}
	}
	return c.violations
}

// use holds that a use is answered as the latest answer about its definition
// asks for; while a request is under way, nobody knows.
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
	report := func(format string, args ...any) {
		c.violations = append(c.violations, Violation{DefinitionsServed, u.String(), fmt.Sprintf(format, args...)})
	}
	switch {
	case latest.Outcome == NotFound && u.Code < 300 && u.Start-latest.End > cleanupTime:
		report("it was answered %d, and %s found nothing", u.Code, latest)
	case latest.Outcome != OK || !latest.Established || latest.Terminating || latest.Kind == Delete:
	case u.Code == 404:
		report("it was answered 404 after %s, which was established", latest)
	case u.Variant != "" && latest.Variant != "" && u.Variant != latest.Variant:
		report("it has the schema %s and must have %s, by %s", u.Variant, latest.Variant, latest)
	}
}

// taken reports whether another definition may have had one of the names of d
// when that was answered, or shortly before.
func (c *definitionCheck) taken(d *Definition) bool {
	holds := map[string]bool{}
	for _, other := range c.all {
		if other.Server != d.Server || other.Cluster != d.Cluster || other.Name == d.Name || other.Start > d.End || other.Outcome == Refused {
			continue
		}
		switch {
		case other.Outcome == NotFound && d.Start-other.End > cleanupTime:
			delete(holds, other.Name)
		case slices.ContainsFunc(other.Names, func(name string) bool { return slices.Contains(d.Names, name) }) && (other.Kind == Create || other.Kind == Update):
			holds[other.Name] = true
		}
	}
	return len(holds) > 0
}
