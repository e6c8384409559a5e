package history

import (
	"fmt"
	"net/http"
	"strings"
)

// Value returns a value for a write to a key. It carries the tenant, so that
// content that crosses is found.
func Value(k Key, client, n int) string {
	return fmt.Sprintf("%s/%s#%d-%d", k.Shard, k.Cluster, client, n)
}

// checkIsolation holds property 10.
func checkIsolation(h *History) []Violation {
	c := &isolationCheck{written: map[string]Key{}, clusters: map[string]bool{}}
	for _, op := range h.Ops {
		c.clusters[op.Key.Cluster] = true
		if op.Kind == Create || op.Kind == Update {
			c.written[op.Value] = op.Key
		}
	}
	for _, op := range h.Ops {
		if op.Outcome == OK && op.Kind != Delete {
			c.object(op, Scope{Shard: op.Key.Shard, Cluster: op.Key.Cluster, Namespace: op.Key.Namespace}, Object{op.Key, op.Result})
		}
	}
	for _, l := range h.Lists {
		for _, o := range l.Items {
			c.object(l, l.Scope, o)
		}
	}
	for _, s := range h.Sessions {
		for _, e := range s.Events {
			if e.Type != Bookmark {
				c.object(s, s.Scope, e.Object)
			}
		}
	}
	for _, said := range h.Errors {
		for cluster := range c.clusters {
			if said.Cluster != "" && cluster != said.Cluster && strings.Contains(said.Text, cluster) {
				c.report("error in "+said.Cluster, "it tells of %s: %s", cluster, said.Text)
			}
		}
	}
	for _, p := range h.Probes {
		if p.Want == 0 && p.Code != http.StatusBadRequest {
			c.report(p.Name, "it was answered %d", p.Code)
		}
	}
	return c.violations
}

type isolationCheck struct {
	written    map[string]Key
	clusters   map[string]bool
	violations []Violation
}

func (c *isolationCheck) report(where, format string, args ...any) {
	c.violations = append(c.violations, Violation{Isolated, where, fmt.Sprintf(format, args...)})
}

// object holds that what is shown is in scope, and was written to that key.
func (c *isolationCheck) object(where fmt.Stringer, scope Scope, o Object) {
	if !scope.holds(o.Key) {
		c.report(where.String(), "it shows %v", o.Key)
	}
	if o.State.Value == "" {
		return
	}
	key, ok := c.written[o.State.Value]
	switch {
	case !ok:
		c.report(where.String(), "%v has the value %q, which nobody wrote", o.Key, o.State.Value)
	case key != o.Key:
		c.report(where.String(), "%v has the value %q, which was written to %v", o.Key, o.State.Value, key)
	}
}
