package history

import (
	"fmt"
	"net/http"
	"strings"
)

// Value returns a unique value for a write to a key. It contains the logical cluster, so that data
// of another one is detected.
func Value(k Key, client, n int) string {
	return fmt.Sprintf("%s/%s#%d-%d", k.Shard, k.Cluster, client, n)
}

// checkIsolation checks property 10.
func checkIsolation(r *reporter, h *History) {
	c := &isolationCheck{reporter: r, written: map[string]Key{}, clusters: map[string]bool{}}
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
	for _, e := range h.Errors {
		for cluster := range c.clusters {
			if e.Cluster != "" && cluster != e.Cluster && strings.Contains(e.Text, cluster) {
				c.report(Isolated, text("error in "+e.Cluster), "the message contains the logical cluster %s: %s", cluster, e.Text)
			}
		}
	}
	for _, p := range h.Probes {
		if p.Want == 0 && p.Code != http.StatusBadRequest {
			c.report(Isolated, text(p.Name), "status %d", p.Code)
		}
	}
}

type isolationCheck struct {
	*reporter

	written  map[string]Key
	clusters map[string]bool
}

// object checks that an object is in scope, and that its value was written to its key.
func (c *isolationCheck) object(where fmt.Stringer, scope Scope, o Object) {
	if !scope.mayContain(o.Key) {
		c.report(Isolated, where, "the response contains %v", o.Key)
	}
	if o.State.Value == "" {
		return
	}
	key, ok := c.written[o.State.Value]
	switch {
	case !ok:
		c.report(Isolated, where, "%v has the value %q, which no client wrote", o.Key, o.State.Value)
	case key != o.Key:
		c.report(Isolated, where, "%v has the value %q, which was written to %v", o.Key, o.State.Value, key)
	}
}
