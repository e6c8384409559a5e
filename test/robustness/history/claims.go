package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Claim is the effective permission claim of an export in a logical cluster, until its next one.
type Claim struct {
	Domain  Domain
	Cluster string
	// Effective is true if objects are visible: all objects, or those with one of the Labels.
	Effective bool
	Labels    []string
	// After is a resource version before the claim changed, Start when the change was requested,
	// and End when the binding, at Version, reported the change as applied.
	After, Version uint64
	Start, End     int64
}

func (c *Claim) String() string {
	switch {
	case !c.Effective:
		return "none"
	case len(c.Labels) == 0:
		return "all"
	}
	return fmt.Sprint(c.Labels)
}

// slack is the maximum delay until a claim takes effect after its binding reports it. lag is the
// additional delay of other replicas.
const (
	slack = int64(2 * time.Second)
	lag   = int64(10 * time.Second)
)

// claimedScope is a scope restricted by a claim.
type claimedScope struct {
	Scope

	claim *Claim
}

func (s claimedScope) mayContain(k Key) bool {
	return s.claim.Effective && k.Cluster == s.claim.Cluster && s.Scope.mayContain(k)
}

func (s claimedScope) Selects(k Key, state State) bool {
	return s.mayContain(k) && (len(s.claim.Labels) == 0 || slices.Contains(s.claim.Labels, state.Label)) && s.Scope.Selects(k, state)
}

// checkClaims checks the responses of virtual workspaces. At each bookmark and in each list, the objects
// of each consumer must be those of one claim. Between bookmarks, exactly the events of this claim are
// expected, followed by the events that replace it by another one.
func checkClaims(r *reporter, h *History, t *truth) {
	c := &claimCheck{reporter: r, truth: t, arrivals: newArrivals(h), claims: map[Domain]map[string][]*Claim{}}
	for _, claim := range h.Claims {
		if c.claims[claim.Domain] == nil {
			c.claims[claim.Domain] = map[string][]*Claim{}
		}
		c.claims[claim.Domain][claim.Cluster] = append(c.claims[claim.Domain][claim.Cluster], claim)
	}
	type step struct {
		id int
		do func(*claimClient)
	}
	steps := map[string][]step{}
	for _, l := range h.Lists {
		switch {
		case !l.VirtualWorkspace || len(l.Pages) == 0:
		case l.Client == "":
			c.claimClient(l.Domain, l.Scope, h.Replicas).list(l)
		default:
			steps[l.Client] = append(steps[l.Client], step{l.ID, func(v *claimClient) { v.list(l) }})
		}
	}
	scopes := map[string]*Session{}
	for _, s := range h.Sessions {
		if s.VirtualWorkspace {
			scopes[s.Name] = s
			steps[s.Name] = append(steps[s.Name], step{s.ID, func(v *claimClient) { v.session(s) }})
		}
	}
	for name, s := range scopes {
		v := c.claimClient(s.Domain, s.Scope, h.Replicas)
		slices.SortFunc(steps[name], func(a, b step) int { return a.id - b.id })
		for _, step := range steps[name] {
			step.do(v)
		}
	}
}

type claimCheck struct {
	*reporter

	truth    *truth
	arrivals arrivals
	claims   map[Domain]map[string][]*Claim
}

// claimClient is a client of a virtual workspace.
type claimClient struct {
	*claimCheck

	domain Domain
	scope  Scope
	// multiReplica is true if replicas with different claims may serve its requests.
	multiReplica bool
	where        fmt.Stringer
	// state contains the objects that the client observed.
	state map[Key]State
	// candidates are the indices of the claims of a logical cluster of which one was effective at the
	// last bookmark or list, and minimum is the first index that may be effective since.
	candidates map[string][]int
	minimum    map[string]int
	// failed contains logical clusters with a violation. They are not checked any more.
	failed map[string]bool
}

func (c *claimCheck) claimClient(d Domain, scope Scope, apart bool) *claimClient {
	return &claimClient{claimCheck: c, domain: d, scope: scope, multiReplica: apart, candidates: map[string][]int{}, minimum: map[string]int{}, failed: map[string]bool{}}
}

func (v *claimClient) report(cluster, format string, args ...any) {
	v.failed[cluster] = true
	v.reporter.report(Claimed, v.where, format, args...)
}

// interval is the time in which a response was created, and its number of pages.
type interval struct {
	began, ended int64
	pages        int
}

// sentDuring returns when the server may have sent the events of a session at a resource version. A
// busy client may receive them much later. They were sent at the latest when another client
// observed a later version, if the session had started by then.
func (v *claimClient) sentDuring(s *Session, rv uint64, received int64) interval {
	return interval{began: max(s.Start, min(received, v.arrivals.passed(v.domain.Server, rv))), ended: received, pages: 1}
}

// possible reports whether the nth claim of a logical cluster may be effective in an interval.
func (v *claimClient) possible(cluster string, n int, at interval) bool {
	all := v.claims[v.domain][cluster]
	delay := slack
	if v.multiReplica {
		delay += lag
	}
	return at.ended >= all[n].Start && (n == len(all)-1 || all[n+1].End == 0 || at.began <= all[n+1].End+delay)
}

// recentlyChanged reports whether the claims of a logical cluster changed so recently that replicas
// may use different ones.
func (v *claimClient) recentlyChanged(cluster string, at interval) bool {
	return slices.ContainsFunc(v.claims[v.domain][cluster], func(c *Claim) bool {
		return c.Start > 0 && at.ended >= c.Start && (c.End == 0 || at.began <= c.End+lag+slack)
	})
}

// mayRepeat reports whether a segment may repeat events that its client has received. At the start
// of a stream it may, if the claims of the logical cluster have ever changed.
func (v *claimClient) mayRepeat(cluster string, s *segment) bool {
	return s.first && slices.ContainsFunc(v.claims[v.domain][cluster], func(c *Claim) bool { return c.Start > 0 && s.at.ended >= c.Start })
}

// list replaces the state by that of a list.
func (v *claimClient) list(l *List) {
	v.where, v.state = l, map[Key]State{}
	at := interval{l.Start, l.End, len(l.Pages)}
	for _, o := range l.Items {
		v.state[o.Key] = o.State
		v.checkAllowed("list", o, at)
	}
	for cluster := range v.claims[v.domain] {
		v.candidates[cluster] = v.matching(cluster, l.RV(), at)
		v.advance(cluster)
	}
}

// acrossPages returns two claims of which one may have replaced the other between the pages of a
// list, or nil. A watch from the resource version of the list then returns the difference.
func (v *claimClient) acrossPages(cluster string, rv uint64, at interval) []int {
	all := v.claims[v.domain][cluster]
	for n := v.minimum[cluster] + 1; n < len(all); n++ {
		if !v.possible(cluster, n-1, at) || !v.possible(cluster, n, at) {
			continue
		}
		was, is := v.truth.at(v.domain, v.scopeOf(all[n-1]), rv), v.truth.at(v.domain, v.scopeOf(all[n]), rv)
		if v.consistentWith(cluster, was, is) {
			return []int{n - 1, n}
		}
	}
	return nil
}

// consistentWith reports whether all observed objects are in one of two states, and all objects
// that are in both states are observed.
func (v *claimClient) consistentWith(cluster string, was, is map[Key]State) bool {
	for k, got := range v.state {
		if k.Cluster == cluster && was[k] != got && is[k] != got && !v.truth.vanished[got.UID] {
			return false
		}
	}
	for k, state := range was {
		if is[k] == state && v.state[k] != state && !v.truth.vanished[state.UID] {
			return false
		}
	}
	return true
}

// checkAllowed checks that a possible claim allows an object.
func (v *claimClient) checkAllowed(what string, o Object, at interval) {
	cluster := o.Key.Cluster
	all := v.claims[v.domain][cluster]
	for n := range all {
		if v.possible(cluster, n, at) && (v.scopeOf(all[n])).Selects(o.Key, o.State) {
			return
		}
	}
	if len(all) > 0 {
		v.report(cluster, "%s contains %v as %+v, which no possible claim allows", what, o.Key, o.State)
	}
}

func (v *claimClient) scopeOf(c *Claim) claimedScope { return claimedScope{v.scope, c} }

// advance excludes claims before the candidates.
func (v *claimClient) advance(cluster string) {
	if matches := v.candidates[cluster]; len(matches) > 0 && !v.multiReplica {
		v.minimum[cluster] = matches[0]
	}
}

// matching returns the claims under which a logical cluster has the observed objects at a resource
// version, and reports a violation if there are none.
func (v *claimClient) matching(cluster string, rv uint64, at interval) []int {
	if v.failed[cluster] {
		return nil
	}
	var matches []int
	nearest, best := "", -1
	for n, claim := range v.claims[v.domain][cluster] {
		if n < v.minimum[cluster] || claim.After >= rv && n > 0 || !v.possible(cluster, n, at) {
			continue
		}
		differences, first := v.differences(v.scopeOf(claim), rv)
		if differences == 0 {
			matches = append(matches, n)
		} else if best < 0 || differences <= best {
			best, nearest = differences, fmt.Sprintf("for the claim %s, %s", claim, first)
		}
	}
	if len(matches) == 0 && at.pages > 1 {
		matches = v.acrossPages(cluster, rv, at)
	}
	if len(matches) == 0 && v.multiReplica && v.recentlyChanged(cluster, at) {
		return v.allCandidates(cluster)
	}
	if len(matches) == 0 {
		v.report(cluster, "the objects of %s at %d match no possible claim: %s", cluster, rv, nearest)
	}
	return matches
}

// allCandidates returns the claims of a logical cluster that are not excluded.
func (v *claimClient) allCandidates(cluster string) (all []int) {
	for n := v.minimum[cluster]; n < len(v.claims[v.domain][cluster]); n++ {
		all = append(all, n)
	}
	return all
}

// differences counts the differences between the state and the expected objects at a resource
// version.
func (v *claimClient) differences(s claimedScope, rv uint64) (n int, first string) {
	want := v.truth.at(v.domain, s, rv)
	add := func(format string, args ...any) {
		if n++; n == 1 {
			first = fmt.Sprintf(format, args...)
		}
	}
	for k, is := range want {
		if got, ok := v.state[k]; (!ok && !v.truth.vanished[is.UID]) || (ok && got != is && !v.truth.vanished[got.UID]) {
			add("%v is %+v, expected %+v", k, got, is)
		}
	}
	for k, got := range v.state {
		if _, ok := want[k]; !ok && k.Cluster == s.claim.Cluster && !v.truth.vanished[got.UID] {
			add("unexpected %v as %+v", k, got)
		}
	}
	return n, first
}

// session applies the events of a stream.
func (v *claimClient) session(s *Session) {
	v.where = s
	from, events, first := s.From, s.Events[:0:0], true
	if s.Streaming {
		v.state, from = map[Key]State{}, 0
	} else if v.state == nil {
		return // its list was not recorded
	}
	ended, position := false, from
	for _, e := range s.Events {
		rv := e.Object.State.RV
		position = max(position, rv)
		at := v.sentDuring(s, position, e.Time)
		if e.Type == Added || e.Type == Modified {
			v.checkAllowed(e.Type, e.Object, at)
		}
		if e.Type != Bookmark {
			events = append(events, e)
			fold(v.state, e)
		}
		if e.Type != Bookmark || s.Streaming && from == 0 && !e.InitialEnd {
			continue
		}
		if s.Through != 0 && rv >= s.Through && !ended {
			ended = true
			v.checkLatest(rv)
		}
		v.bookmark(&segment{from: from, to: rv, first: first, initial: e.InitialEnd, at: at, events: events})
		from, events, first = rv, nil, e.InitialEnd
	}
	// The events of a changed claim are ordered only by the next bookmark.
	byVersion := func(a, b Event) int { return cmp.Compare(a.Object.State.RV, b.Object.State.RV) }
	if n := len(events); s.Through != 0 && !ended && n > 0 && slices.IsSortedFunc(events, byVersion) && events[n-1].Object.State.RV >= s.Through {
		v.checkLatest(events[n-1].Object.State.RV)
	}
	if s.Streaming && from == 0 {
		v.state = nil // cut off within initial events
	}
}

// checkLatest checks that the latest claims are effective.
func (v *claimClient) checkLatest(rv uint64) {
	for cluster, all := range v.claims[v.domain] {
		if v.failed[cluster] {
			continue
		}
		last := all[len(all)-1]
		if n, first := v.differences(v.scopeOf(last), rv); n > 0 {
			v.report(cluster, "at %d, after the last change, the claim is %s: %s", rv, last, first)
		}
	}
}

// segment contains the events of a stream up to a bookmark.
type segment struct {
	from, to uint64
	// first is true for the first segment after the initial events, if any. initial is true for
	// these.
	first, initial bool
	at             interval
	events         []Event
}

func (v *claimClient) bookmark(s *segment) {
	for cluster := range v.claims[v.domain] {
		matches := v.matching(cluster, s.to, s.at)
		if len(matches) == 0 || s.initial {
			v.candidates[cluster] = matches
			v.advance(cluster)
			continue
		}
		exact, why := v.reachable(s, cluster, matches)
		// If replicas use different claims, a client may observe both.
		free := v.mayRepeat(cluster, s) || v.multiReplica && v.recentlyChanged(cluster, s.at)
		if len(exact) == 0 && !free {
			v.report(cluster, "from %d to %d, %s", s.from, s.to, why)
		}
		if len(exact) == 0 {
			exact = matches
		}
		v.candidates[cluster] = exact
		v.advance(cluster)
	}
}

// reachable returns the candidates at the end of a segment to which its events lead from a
// candidate at its start. If there are none, why contains the reason.
func (v *claimClient) reachable(s *segment, cluster string, matches []int) (exact []int, why string) {
	all, before := v.claims[v.domain][cluster], v.candidates[cluster]
	if s.first {
		before = v.allCandidates(cluster)
	}
	for _, n := range matches {
		for _, was := range before {
			if was > n && !v.multiReplica {
				continue
			}
			if why = v.mismatch(s, all[was], all[n]); why == "" {
				exact = append(exact, n)
				break
			}
		}
	}
	return exact, why
}

// mismatch returns why the events of a logical cluster are not those of one claim, followed by
// those that replace it by another one. It returns "" if they are.
func (v *claimClient) mismatch(s *segment, was, is *Claim) string {
	want := v.truth.between(v.domain, v.scopeOf(was), s.from, s.to)
	ordinary := len(want)
	want = append(want, v.replacementEvents(was, is, s.to)...)
	missing := map[eventKey]int{}
	for n, e := range want {
		missing[eventKeyOf(e)] = n
	}
	change := fmt.Sprintf("with the claims %s, then %s", was, is)
	changed := false
	for _, e := range s.events {
		if e.Object.Key.Cluster != is.Cluster {
			continue
		}
		what := fmt.Sprintf("%s, %s of %v at %d", change, e.Type, e.Object.Key, e.Object.State.RV)
		n, ok := missing[eventKeyOf(e)]
		switch {
		case !ok && v.truth.vanished[e.Object.State.UID]:
			continue
		case !ok:
			return what + " is unexpected"
		case !e.Object.State.sameContent(want[n].Object.State):
			return fmt.Sprintf("%s is %+v, expected %+v", what, e.Object.State, want[n].Object.State)
		case n < ordinary && changed:
			return what + " follows the events of the change"
		}
		changed = n >= ordinary
		delete(missing, eventKeyOf(e))
	}
	for e, n := range missing {
		if !v.truth.vanished[want[n].Object.State.UID] {
			return fmt.Sprintf("%s, the stream lacks %s of %v at %d", change, e.kind, e.key, e.rv)
		}
	}
	return ""
}

// eventKey identifies an event.
type eventKey struct {
	key  Key
	rv   uint64
	kind string
}

func eventKeyOf(e Event) eventKey { return eventKey{e.Object.Key, e.Object.State.RV, e.Type} }

// replacementEvents returns the events that replace one claim by another one at a resource version.
func (v *claimClient) replacementEvents(was, is *Claim, rv uint64) []Event {
	if was == is {
		return nil
	}
	var events []Event
	before, after := v.truth.at(v.domain, v.scopeOf(was), rv), v.truth.at(v.domain, v.scopeOf(is), rv)
	for k, state := range after {
		if _, ok := before[k]; !ok {
			events = append(events, Event{Type: Added, Object: Object{k, state}})
		}
	}
	for k, state := range before {
		if _, ok := after[k]; !ok {
			state.RV = rv
			events = append(events, Event{Type: Deleted, Object: Object{k, state}})
		}
	}
	return events
}
