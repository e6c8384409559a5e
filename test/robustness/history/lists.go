package history

import "slices"

type listCheck struct {
	*reporter

	truth *truth
}

// checkLists checks properties 7, 8 and 9.
func checkLists(r *reporter, h *History, t *truth) {
	c := &listCheck{r, t}
	groups := map[int][]*List{}
	for _, l := range h.Lists {
		if len(l.Pages) == 0 {
			continue
		}
		c.pages(l)
		c.version(l)
		if !l.VirtualWorkspace {
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
}

// pages checks that the pages of a list match.
func (c *listCheck) pages(l *List) {
	for i, p := range l.Pages {
		if p.RV != l.RV() {
			c.report(ListsAgree, l, "page %d is at %d, the first one at %d", i+1, p.RV, l.RV())
		}
		if p.Remaining && (l.VirtualWorkspace || l.Scope.Selective()) {
			c.report(ListsAgree, l, "page %d contains the number of remaining items although a selector filters", i+1)
		}
		if last := i == len(l.Pages)-1; p.More == last {
			c.report(ListsAgree, l, "page %d of %d has a continue token: %t", i+1, len(l.Pages), p.More)
		}
	}
}

// version checks the resource version of a list.
func (c *listCheck) version(l *List) {
	switch l.Match {
	case Exact:
		if l.RV() != l.Wanted {
			c.report(ListsAgree, l, "returned at %d, requested exactly %d", l.RV(), l.Wanted)
		}
	case NotOlderThan:
		if l.RV() < l.Wanted {
			c.report(ListsAgree, l, "returned at %d, requested not older than %d", l.RV(), l.Wanted)
		}
	case Consistent, Any:
	}
}

// content checks that a list contains the state at its resource version.
func (c *listCheck) content(l *List) {
	got := map[Key]State{}
	for _, o := range l.Items {
		if _, twice := got[o.Key]; twice {
			c.report(ListsAgree, l, "%v is contained twice", o.Key)
		}
		got[o.Key] = o.State
		if o.State.RV > l.RV() {
			c.report(ListsAgree, l, "returned at %d and shows %v at %d", l.RV(), o.Key, o.State.RV)
		}
		if !l.Scope.Selects(o.Key, o.State) {
			c.report(ListsAgree, l, "the selector does not match %v %+v", o.Key, o.State)
		}
	}
	want := c.truth.at(l.Domain, l.Scope, l.RV())
	for k, s := range want {
		if g, ok := got[k]; (!ok && !c.truth.vanished[s.UID]) || (ok && g != s) {
			c.report(ListsAgree, l, "at %d %v was %+v, and the list shows %+v", l.RV(), k, s, g)
		}
	}
	for k, s := range got {
		if _, ok := want[k]; !ok {
			c.report(ListsAgree, l, "at %d %v did not exist, and the list shows %+v", l.RV(), k, s)
		}
	}
}

// consistent checks property 8.
func (c *listCheck) consistent(l *List, h *History) {
	for _, op := range h.Ops {
		if op.Domain.Server != l.Domain.Server || op.Outcome != OK || op.End >= l.Start {
			continue
		}
		switch op.Kind {
		case Create, Update, Get:
			if op.Result.RV > l.RV() {
				c.report(ReadsOwnWrites, l, "returned at %d, although the request began after the response to %s at %d", l.RV(), op, op.Result.RV)
			}
		case Delete:
			for _, o := range l.Items {
				if o.State.UID == op.Expected.UID && op.Domain == l.Domain {
					c.report(ReadsOwnWrites, l, "the list shows %v, although the request began after the response to %s", o.Key, op)
				}
			}
		}
	}
	for _, before := range h.Lists {
		if before.Domain.Server == l.Domain.Server && before.End < l.Start && before.RV() > l.RV() {
			c.report(ReadsOwnWrites, l, "returned at %d, although the request began after the response to %s at %d", l.RV(), before, before.RV())
		}
	}
}

// group checks property 9: of lists at one resource version, the parts add up to the complete list.
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
			c.report(ShardsAddUp, l, "returned at %d, the complete list at %d", l.RV(), lists[whole].RV())
		}
		for _, o := range l.Items {
			if other := shown[o.Key]; other != nil {
				c.report(ShardsAddUp, l, "%v is also in %s", o.Key, other)
			}
			shown[o.Key] = l
			if s, ok := all[o.Key]; !ok || s != o.State {
				c.report(ShardsAddUp, l, "the list shows %v as %+v, the complete list as %+v", o.Key, o.State, s)
			}
		}
	}
	for k := range all {
		if shown[k] == nil {
			c.report(ShardsAddUp, lists[whole], "no part contains %v", k)
		}
	}
}

// listAndWatch checks, without the truth, that a list and a watch from it add up to each later
// list.
func (c *listCheck) listAndWatch(s *Session, lists []*List) {
	if s.Streaming || s.VirtualWorkspace {
		return
	}
	start := slices.IndexFunc(lists, func(l *List) bool {
		return l.Domain == s.Domain && !l.VirtualWorkspace && sameScope(l.Scope, s.Scope) && l.RV() == s.From && len(l.Pages) > 0
	})
	if start < 0 {
		return
	}
	for _, l := range lists {
		if l.Domain != s.Domain || l.VirtualWorkspace || !sameScope(l.Scope, s.Scope) || l.RV() <= s.From || l.RV() > reached(s, s.Events) || len(l.Pages) == 0 {
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
				c.report(ListsAgree, l, "the list shows %v as %+v, and %s from %s led to %+v", o.Key, o.State, s, lists[start], state[o.Key])
			}
			delete(state, o.Key)
		}
		for k := range state {
			c.report(ListsAgree, l, "the list lacks %v, which %s from %s contains", k, s, lists[start])
		}
	}
}

func sameScope(a, b Scope) bool {
	return a.Shard == b.Shard && a.Cluster == b.Cluster && a.Namespace == b.Namespace && a.Label == b.Label &&
		a.By == b.By && a.withoutSystem == b.withoutSystem && slices.Equal(a.Ranges, b.Ranges)
}
