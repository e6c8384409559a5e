package history

import (
	"fmt"
	"maps"
	"slices"
)

// Versions is a version of several servers: how far each has been seen.
type Versions map[string]uint64

// Item is an object in a merged answer, the server that has it, and the version that
// it came with.
type Item struct {
	Object
	Server string
	At     Versions
}

// MergedSession is one watch of a resource of several servers at once. Each of its
// events is an Item; bookmarks have no server.
type MergedSession struct {
	ID             int
	Name, Resource string
	Scope          Scope
	Streaming      bool
	From           Versions
	Resumed        bool
	Events         []MergedEvent
	Through        Versions
}

// MergedEvent is an event of a MergedSession.
type MergedEvent struct {
	Type       string
	InitialEnd bool
	Item
}

// MergedList is one list of a resource of several servers.
type MergedList struct {
	ID             int
	Name, Resource string
	Scope          Scope
	Start, End     int64
	// Pages are the versions of the pages.
	Pages []Versions
	Items []Item
}

func (s *MergedSession) String() string { return fmt.Sprintf("merged session %d (%s)", s.ID, s.Name) }

func (l *MergedList) String() string { return fmt.Sprintf("merged list %d (%s)", l.ID, l.Name) }

// parted returns the history with what merged answers show of each server as sessions and
// lists of that server, for which all properties hold that hold for its own.
func parted(h *History) *History {
	all := *h
	all.Sessions, all.Lists = slices.Clone(h.Sessions), slices.Clone(h.Lists)
	for _, s := range h.Merged {
		all.Sessions = append(all.Sessions, s.parts()...)
	}
	for _, l := range h.MergedLists {
		all.Lists = append(all.Lists, l.parts()...)
	}
	return &all
}

// parts are the sessions of each server that the session is made of.
func (s *MergedSession) parts() []*Session {
	servers := Versions{}
	maps.Copy(servers, s.From)
	for _, e := range s.Events {
		maps.Copy(servers, e.At)
	}
	var parts []*Session
	for _, server := range slices.Sorted(maps.Keys(servers)) {
		part := &Session{
			ID: s.ID, Name: s.Name + ", of " + server, Domain: Domain{server, s.Resource}, Scope: s.Scope.ofTenants(),
			Streaming: s.Streaming, From: s.From[server], Resumed: s.Resumed, Through: s.Through[server],
		}
		for _, e := range s.Events {
			switch rv, told := e.At[server]; {
			case e.Type == Bookmark && told:
				part.Events = append(part.Events, Event{Type: Bookmark, InitialEnd: e.InitialEnd, Object: Object{State: State{RV: rv}}})
			case e.Server == server:
				part.Events = append(part.Events, Event{Type: e.Type, Object: e.Object})
			}
		}
		parts = append(parts, part)
	}
	return parts
}

// parts are the lists of each server that the list is made of.
func (l *MergedList) parts() []*List {
	if len(l.Pages) == 0 {
		return nil
	}
	var parts []*List
	for _, server := range slices.Sorted(maps.Keys(l.Pages[0])) {
		part := &List{
			ID: l.ID, Name: l.Name + ", of " + server, Domain: Domain{server, l.Resource}, Scope: l.Scope.ofTenants(),
			Start: l.Start, End: l.End, Match: Consistent, Pages: []Page{{RV: l.Pages[0][server]}},
		}
		for _, item := range l.Items {
			if item.Server == server {
				part.Items = append(part.Items, item.Object)
			}
		}
		part.Pages[0].Items = len(part.Items)
		parts = append(parts, part)
	}
	return parts
}

// checkMerged holds what versions of several servers promise.
func checkMerged(h *History) []Violation {
	var violations []Violation
	for _, s := range h.Merged {
		c := mergedCheck{where: s.String()}
		c.session(s)
		violations = append(violations, c.violations...)
	}
	for _, l := range h.MergedLists {
		c := mergedCheck{where: l.String()}
		c.list(l)
		violations = append(violations, c.violations...)
	}
	return violations
}

type mergedCheck struct {
	where      string
	violations []Violation
}

func (c *mergedCheck) report(format string, args ...any) {
	c.violations = append(c.violations, Violation{Merged, c.where, fmt.Sprintf(format, args...)})
}

// session holds that who resumes from any version of a session misses nothing: it goes on
// for the server of an event only, and never back; among initial events, it has no server
// that more of them follow of.
func (c *mergedCheck) session(s *MergedSession) {
	now, initial := maps.Clone(s.From), s.Streaming
	whole := Versions{} // the servers whose initial events are over
	for _, e := range s.Events {
		switch {
		case e.InitialEnd:
			now, initial = maps.Clone(e.At), false
			c.forward(whole, e, "")
		case initial && e.Type != Bookmark:
			if _, over := whole[e.Server]; over {
				c.report("%s of %v of %s is an initial event, and an earlier version has them all", e.Type, e.Key, e.Server)
			}
			for server, rv := range e.At {
				if server != e.Server {
					whole[server] = rv
				}
			}
		case !initial:
			c.forward(now, e, e.Server)
			now = e.At
		}
	}
}

// forward holds that an event's version is the one before, but for one server's part. Of
// a bookmark, without a server, any part may be later.
func (c *mergedCheck) forward(before Versions, e MergedEvent, server string) {
	for s, rv := range before {
		if e.At[s] < rv || server != "" && s != server && e.At[s] != rv {
			c.report("after %v, the version of %s of %v of %q is %v", before, e.Type, e.Key, e.Server, e.At)
		}
	}
}

// list holds that all pages have one version, and that no item's is ahead of it: who watches
// from there, wherever in the list that is, misses nothing.
func (c *mergedCheck) list(l *MergedList) {
	for i, page := range l.Pages {
		if !maps.Equal(page, l.Pages[0]) {
			c.report("page %d is at %v, the first one at %v", i+1, page, l.Pages[0])
		}
	}
	for _, item := range l.Items {
		for server, rv := range l.Pages[0] {
			if item.At[server] > rv {
				c.report("%v of %s comes with %v in a list at %v", item.Key, item.Server, item.At, l.Pages[0])
			}
		}
	}
}
