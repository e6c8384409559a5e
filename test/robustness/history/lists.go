package history

import (
	"fmt"
	"slices"
)

type listCheck struct {
	truth      *truth
	violations []Violation
}

func (c *listCheck) report(p Property, l *List, format string, args ...any) {
	c.violations = append(c.violations, Violation{p, l.String(), fmt.Sprintf(format, args...)})
}

// checkLists holds properties 7, 8 and 9.
func checkLists(h *History, t *truth) []Violation {
	c := &listCheck{truth: t}
	groups := map[int][]*List{}
	for _, l := range h.Lists {
		if len(l.Pages) == 0 {
			continue
		}
		c.pages(l)
		c.version(l)
		if !l.View {
			c.content(l)
		}
		if l.Match == Consistent {
			c.consistent(l, h)
		}
		if l.Group != 0 {
			groups[l.Group] = append(groups[l.Group], l)
		}
	}
	for _, group := range groups {
		c.group(group)
	}
	for _, s := range h.Sessions {
		c.listAndWatch(s, h.Lists)
	}
	return c.violations
}

// pages holds what the pages of a list have in common.
func (c *listCheck) pages(l *List) {
	for i, p := range l.Pages {
		if p.RV != l.RV() {
			c.report(ListsAgree, l, "page %d is at %d, the first one at %d", i+1, p.RV, l.RV())
		}
		if p.Remaining && (l.View || l.Scope.Selective()) {
			c.report(ListsAgree, l, "page %d tells how many items remain, though a selector filters", i+1)
		}
		if last := i == len(l.Pages)-1; p.More == last {
			c.report(ListsAgree, l, "page %d of %d says that there are more: %t", i+1, len(l.Pages), p.More)
		}
	}
}

// version holds which resource version a list may have.
func (c *listCheck) version(l *List) {
	switch l.Match {
	case Exact:
		if l.RV() != l.Wanted {
			c.report(ListsAgree, l, "it is at %d, and exactly %d was asked for", l.RV(), l.Wanted)
		}
	case NotOlderThan:
		if l.RV() < l.Wanted {
			c.report(ListsAgree, l, "it is at %d, and nothing older than %d was asked for", l.RV(), l.Wanted)
		}
	case Consistent, Any:
	}
}

// content holds that a list shows the state at its resource version.
func (c *listCheck) content(l *List) {
	got := map[Key]State{}
	for _, o := range l.Items {
		if _, twice := got[o.Key]; twice {
			c.report(ListsAgree, l, "%v is in it twice", o.Key)
		}
		got[o.Key] = o.State
		if o.State.RV > l.RV() {
			c.report(ListsAgree, l, "it is at %d and shows %v at %d", l.RV(), o.Key, o.State.RV)
		}
		if !l.Scope.Selects(o.Key, o.State) {
			c.report(ListsAgree, l, "its selector does not select %v %+v", o.Key, o.State)
		}
	}
	want := c.truth.at(l.Domain, l.Scope, l.RV())
	for k, s := range want {
		if g, ok := got[k]; (!ok && !c.truth.vanished[s.UID]) || (ok && g != s) {
			c.report(ListsAgree, l, "at %d %v was %+v, and it shows %+v", l.RV(), k, s, g)
		}
	}
	for k, s := range got {
		if _, ok := want[k]; !ok {
			c.report(ListsAgree, l, "at %d %v was not there, and it shows %+v", l.RV(), k, s)
		}
	}
}

// consistent holds property 8.
func (c *listCheck) consistent(l *List, h *History) {
	for _, op := range h.Ops {
		if op.Domain.Server != l.Domain.Server || op.Outcome != OK || op.End >= l.Start {
			continue
		}
		switch op.Kind {
		case Create, Update, Get:
			if op.Result.RV > l.RV() {
				c.report(ReadsOwnWrites, l, "it is at %d, and began after %s was answered at %d", l.RV(), op, op.Result.RV)
			}
		case Delete:
			for _, o := range l.Items {
				if o.State.UID == op.Expected.UID && op.Domain == l.Domain {
					c.report(ReadsOwnWrites, l, "it shows %v, and began after %s was answered", o.Key, op)
				}
			}
		}
	}
	for _, before := range h.Lists {
		if before.Domain.Server == l.Domain.Server && before.End < l.Start && before.RV() > l.RV() {
			c.report(ReadsOwnWrites, l, "it is at %d, and began after %s was answered at %d", l.RV(), before, before.RV())
		}
	}
}

// group holds property 9: of lists at one resource version, the parts make up
// the whole.
func (c *listCheck) group(lists []*List) {
	whole := slices.IndexFunc(lists, func(l *List) bool { return len(l.Scope.Ranges) == 0 })
	if whole < 0 {
		return
	}
	all := map[Key]State{}
	for _, o := range lists[whole].Items {
		all[o.Key] = o.State
	}
	shown := map[Key]*List{}
	for i, l := range lists {
		if i == whole {
			continue
		}
		if l.RV() != lists[whole].RV() {
			c.report(ShardsAddUp, l, "it is at %d, the whole at %d", l.RV(), lists[whole].RV())
		}
		for _, o := range l.Items {
			if other := shown[o.Key]; other != nil {
				c.report(ShardsAddUp, l, "%v is in %s, too", o.Key, other)
			}
			shown[o.Key] = l
			if s, ok := all[o.Key]; !ok || s != o.State {
				c.report(ShardsAddUp, l, "it shows %v as %+v, the whole as %+v", o.Key, o.State, s)
			}
		}
	}
	for k := range all {
		if shown[k] == nil {
			c.report(ShardsAddUp, lists[whole], "%v is in no part", k)
		}
	}
}

// listAndWatch holds, without the truth, that a list and a watch from it make up
// each later list.
func (c *listCheck) listAndWatch(s *Session, lists []*List) {
	if s.Streaming || s.View {
		return
	}
	start := slices.IndexFunc(lists, func(l *List) bool {
		return l.Domain == s.Domain && !l.View && sameScope(l.Scope, s.Scope) && l.RV() == s.From && len(l.Pages) > 0
	})
	if start < 0 {
		return
	}
	for _, l := range lists {
		if l.Domain != s.Domain || l.View || !sameScope(l.Scope, s.Scope) || l.RV() <= s.From || l.RV() > reached(s, s.Events) || len(l.Pages) == 0 {
			continue
		}
		state := map[Key]State{}
		for _, o := range lists[start].Items {
			state[o.Key] = o.State
		}
		for _, e := range s.Events {
			if e.Object.State.RV <= l.RV() {
				fold(state, e)
			}
		}
		for _, o := range l.Items {
			if state[o.Key] != o.State {
				c.report(ListsAgree, l, "it shows %v as %+v, and %s from %s led to %+v", o.Key, o.State, s, lists[start], state[o.Key])
			}
			delete(state, o.Key)
		}
		for k := range state {
			c.report(ListsAgree, l, "it does not show %v, and %s from %s does", k, s, lists[start])
		}
	}
}

func sameScope(a, b Scope) bool {
	return a.Shard == b.Shard && a.Cluster == b.Cluster && a.Namespace == b.Namespace && a.Label == b.Label &&
		a.By == b.By && a.tenants == b.tenants && slices.Equal(a.Ranges, b.Ranges)
}
