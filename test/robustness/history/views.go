package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Claim is what an export was let see of a logical cluster, until the next one of it.
type Claim struct {
	Domain  Domain
	Cluster string
	// Held says that something is seen: all, or the objects with one of the Labels.
	Held   bool
	Labels []string
	// After is a resource version from before the claim, Start when it was first asked
	// for, and End when the binding, at Version, said that it has effect.
	After, Version uint64
	Start, End     int64
}

func (c *Claim) String() string {
	switch {
	case !c.Held:
		return "none"
	case len(c.Labels) == 0:
		return "all"
	}
	return fmt.Sprint(c.Labels)
}

// slack is how long after its binding says so a claim may take to have effect, and lag
// how long other replicas may, and streams that resume be told of it again.
const (
	slack = int64(2 * time.Second)
	lag   = int64(10 * time.Second)
)

// sight is what a client sees of a scope under a claim.
type sight struct {
	Scope

	claim *Claim
}

func (s sight) holds(k Key) bool {
	return s.claim.Held && k.Cluster == s.claim.Cluster && s.Scope.holds(k)
}

func (s sight) Selects(k Key, state State) bool {
	return s.holds(k) && (len(s.claim.Labels) == 0 || slices.Contains(s.claim.Labels, state.Label)) && s.Scope.Selects(k, state)
}

// checkViews holds that views show what claims ask for: every consumer's, at each
// bookmark and in each list, by one claim at a time; in between exactly the events under
// the claim, and then what its change comes to.
func checkViews(h *History, t *truth) []Violation {
	c := &viewCheck{truth: t, arrivals: newArrivals(h), claims: map[Domain]map[string][]*Claim{}}
	for _, claim := range h.Claims {
		if c.claims[claim.Domain] == nil {
			c.claims[claim.Domain] = map[string][]*Claim{}
		}
		c.claims[claim.Domain][claim.Cluster] = append(c.claims[claim.Domain][claim.Cluster], claim)
	}
	steps := map[string]map[int]func(*viewer){}
	for _, l := range h.Lists {
		switch {
		case !l.View || len(l.Pages) == 0:
		case l.Client == "":
			c.viewer(l.Domain, l.Scope, h.Replicas).list(l)
		default:
			c.step(steps, l.Client, l.ID, func(v *viewer) { v.list(l) })
		}
	}
	scopes := map[string]*Session{}
	for _, s := range h.Sessions {
		if s.View {
			scopes[s.Name] = s
			c.step(steps, s.Name, s.ID, func(v *viewer) { v.session(s) })
		}
	}
	for name, s := range scopes {
		v := c.viewer(s.Domain, s.Scope, h.Replicas)
		for _, id := range slices.Sorted(maps.Keys(steps[name])) {
			steps[name][id](v)
		}
	}
	return c.violations
}

type viewCheck struct {
	truth      *truth
	arrivals   arrivals
	claims     map[Domain]map[string][]*Claim
	violations []Violation
}

func (*viewCheck) step(steps map[string]map[int]func(*viewer), name string, id int, do func(*viewer)) {
	if steps[name] == nil {
		steps[name] = map[int]func(*viewer){}
	}
	steps[name][id] = do
}

// viewer is a client of a view, with what it sees.
type viewer struct {
	*viewCheck

	domain Domain
	scope  Scope
	// apart says that its requests go to several replicas, which need not have come to
	// the same claims.
	apart bool
	where fmt.Stringer
	state map[Key]State
	// may are the claims, by number, of which one counted at the last point where that
	// was known, and least the first that may count since.
	may   map[string][]int
	least map[string]int
	// lost are logical clusters of which something wrong is known already.
	lost map[string]bool
}

func (c *viewCheck) viewer(d Domain, scope Scope, apart bool) *viewer {
	return &viewer{viewCheck: c, domain: d, scope: scope, apart: apart, may: map[string][]int{}, least: map[string]int{}, lost: map[string]bool{}}
}

func (v *viewer) report(cluster, format string, args ...any) {
	v.lost[cluster] = true
	v.violations = append(v.violations, Violation{Claimed, v.where.String(), fmt.Sprintf(format, args...)})
}

// span is between when an answer may have been made, in so many pages.
type span struct {
	began, ended int64
	pages        int
}

// made is when what a session shows at a resource version, or further on, may have been
// made. It can come long after that, on a busy machine: but what the stream shows there was
// made by when somebody knew that the server had got on, if the session had begun.
func (v *viewer) made(s *Session, rv uint64, came int64) span {
	return span{began: max(s.Start, min(came, v.arrivals.passed(v.domain.Server, rv))), ended: came, pages: 1}
}

// possible reports whether the nth claim on a logical cluster may count at a time.
func (v *viewer) possible(cluster string, n int, at span) bool {
	all := v.claims[v.domain][cluster]
	slackNow := slack
	if v.apart {
		slackNow += lag
	}
	return at.ended >= all[n].Start && (n == len(all)-1 || all[n+1].End == 0 || at.began <= all[n+1].End+slackNow)
}

// changed reports whether the claims on a logical cluster have changed so shortly before a
// time that not all replicas need to go by them.
func (v *viewer) changed(cluster string, at span) bool {
	return slices.ContainsFunc(v.claims[v.domain][cluster], func(c *Claim) bool {
		return c.Start > 0 && at.ended >= c.Start && (c.End == 0 || at.began <= c.End+lag+slack)
	})
}

// toldAgain reports whether a segment may tell again what its client has seen of a logical
// cluster: at the beginning of a stream, once the claims on it have changed.
func (v *viewer) toldAgain(cluster string, s *segment) bool {
	return s.first && slices.ContainsFunc(v.claims[v.domain][cluster], func(c *Claim) bool { return c.Start > 0 && s.at.ended >= c.Start })
}

// list starts afresh with a list.
func (v *viewer) list(l *List) {
	v.where, v.state = l, map[Key]State{}
	at := span{l.Start, l.End, len(l.Pages)}
	for _, o := range l.Items {
		v.state[o.Key] = o.State
		v.lets("the list", o, at)
	}
	for cluster := range v.claims[v.domain] {
		v.may[cluster] = v.pin(cluster, l.RV(), at)
		v.move(cluster)
	}
}

// mixed returns two claims of which one may have replaced the other between the pages of a
// list, which a watch from its resource version is told of; nil if there are none.
func (v *viewer) mixed(cluster string, rv uint64, at span) []int {
	all := v.claims[v.domain][cluster]
	for n := v.least[cluster] + 1; n < len(all); n++ {
		if !v.possible(cluster, n-1, at) || !v.possible(cluster, n, at) {
			continue
		}
		was, is := v.truth.at(v.domain, v.sight(all[n-1]), rv), v.truth.at(v.domain, v.sight(all[n]), rv)
		if v.between(cluster, was, is) {
			return []int{n - 1, n}
		}
	}
	return nil
}

// between reports whether all that is shown is in one of two states, and all that is in
// both is shown.
func (v *viewer) between(cluster string, was, is map[Key]State) bool {
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

// lets holds that a claim of the time lets an object be seen.
func (v *viewer) lets(what string, o Object, at span) {
	cluster := o.Key.Cluster
	all := v.claims[v.domain][cluster]
	for n := range all {
		if v.possible(cluster, n, at) && (v.sight(all[n])).Selects(o.Key, o.State) {
			return
		}
	}
	if len(all) > 0 {
		v.report(cluster, "%s shows %v as %+v, which no claim of the time lets it see", what, o.Key, o.State)
	}
}

func (v *viewer) sight(c *Claim) sight { return sight{v.scope, c} }

// move notes that claims before those that may count do so no more.
func (v *viewer) move(cluster string) {
	if may := v.may[cluster]; len(may) > 0 && !v.apart {
		v.least[cluster] = may[0]
	}
}

// pin returns the claims on a logical cluster under which the state is what it must be at
// a resource version, and reports if there are none.
func (v *viewer) pin(cluster string, rv uint64, at span) []int {
	if v.lost[cluster] {
		return nil
	}
	var may []int
	nearest, best := "", -1
	for n, claim := range v.claims[v.domain][cluster] {
		if n < v.least[cluster] || claim.After >= rv && n > 0 || !v.possible(cluster, n, at) {
			continue
		}
		differences, first := v.differences(v.sight(claim), rv)
		if differences == 0 {
			may = append(may, n)
		} else if best < 0 || differences <= best {
			best, nearest = differences, fmt.Sprintf("for the claim %s, %s", claim, first)
		}
	}
	if len(may) == 0 && at.pages > 1 {
		may = v.mixed(cluster, rv, at)
	}
	if len(may) == 0 && v.apart && v.changed(cluster, at) {
		return v.all(cluster)
	}
	if len(may) == 0 {
		v.report(cluster, "what it shows of %s at %d is by no claim of the time: %s", cluster, rv, nearest)
	}
	return may
}

// all are the claims on a logical cluster.
func (v *viewer) all(cluster string) []int {
	may := make([]int, 0, len(v.claims[v.domain][cluster]))
	for n := range v.claims[v.domain][cluster] {
		if n >= v.least[cluster] {
			may = append(may, n)
		}
	}
	return may
}

// differences counts how the state differs from what must be seen at a resource version.
func (v *viewer) differences(s sight, rv uint64) (n int, first string) {
	want := v.truth.at(v.domain, s, rv)
	note := func(format string, args ...any) {
		if n++; n == 1 {
			first = fmt.Sprintf(format, args...)
		}
	}
	for k, is := range want {
		if got, ok := v.state[k]; (!ok && !v.truth.vanished[is.UID]) || (ok && got != is && !v.truth.vanished[got.UID]) {
			note("it shows %v as %+v, and it was %+v", k, got, is)
		}
	}
	for k, got := range v.state {
		if _, ok := want[k]; !ok && k.Cluster == s.claim.Cluster && !v.truth.vanished[got.UID] {
			note("it shows %v as %+v, which it must not", k, got)
		}
	}
	return n, first
}

// session follows a stream.
func (v *viewer) session(s *Session) {
	v.where = s
	from, events, first := s.From, s.Events[:0:0], true
	if s.Streaming {
		v.state, from = map[Key]State{}, 0
	} else if v.state == nil {
		return // its list is not in the record
	}
	ended, position := false, from
	for _, e := range s.Events {
		rv := e.Object.State.RV
		position = max(position, rv)
		at := v.made(s, position, e.Time)
		if e.Type == Added || e.Type == Modified {
			v.lets(e.Type, e.Object, at)
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
			v.latestCounts(rv)
		}
		v.bookmark(&segment{from: from, to: rv, first: first, initial: e.InitialEnd, at: at, events: events})
		from, events, first = rv, nil, e.InitialEnd
	}
	// What is told of claims has no order until the bookmark that follows it.
	byVersion := func(a, b Event) int { return cmp.Compare(a.Object.State.RV, b.Object.State.RV) }
	if n := len(events); s.Through != 0 && !ended && n > 0 && slices.IsSortedFunc(events, byVersion) && events[n-1].Object.State.RV >= s.Through {
		v.latestCounts(events[n-1].Object.State.RV)
	}
	if s.Streaming && from == 0 {
		v.state = nil // cut off within initial events
	}
}

// latestCounts holds that the latest claims count.
func (v *viewer) latestCounts(rv uint64) {
	for cluster, all := range v.claims[v.domain] {
		if v.lost[cluster] {
			continue
		}
		last := all[len(all)-1]
		if n, first := v.differences(v.sight(last), rv); n > 0 {
			v.report(cluster, "at %d, when all is quiet, the claim is %s, and %s", rv, last, first)
		}
	}
}

// segment is what a stream shows up to a bookmark.
type segment struct {
	from, to uint64
	// first says that the stream begins with it, but for initial events, and initial that
	// it is these.
	first, initial bool
	at             span
	events         []Event
}

func (v *viewer) bookmark(s *segment) {
	for cluster := range v.claims[v.domain] {
		may := v.pin(cluster, s.to, s.at)
		if len(may) == 0 || s.initial {
			v.may[cluster] = may
			v.move(cluster)
			continue
		}
		exact, why := v.exact(s, cluster, may)
		// Between replicas that go by different claims, a client is told of both.
		free := v.toldAgain(cluster, s) || v.apart && v.changed(cluster, s.at)
		if len(exact) == 0 && !free {
			v.report(cluster, "from %d to %d, %s", s.from, s.to, why)
		}
		if len(exact) == 0 {
			exact = may
		}
		v.may[cluster] = exact
		v.move(cluster)
	}
}

// exact returns those of the claims that may count at the end of a segment to which the
// events lead from one that may have counted before, and why there are none.
func (v *viewer) exact(s *segment, cluster string, may []int) (exact []int, why string) {
	all, before := v.claims[v.domain][cluster], v.may[cluster]
	if s.first {
		before = v.all(cluster)
	}
	for _, n := range may {
		for _, was := range before {
			if was > n && !v.apart {
				continue
			}
			if why = v.asked(s, all[was], all[n]); why == "" {
				exact = append(exact, n)
				break
			}
		}
	}
	return exact, why
}

// asked says why the events of a logical cluster are not those under one claim, and then
// those by which another one replaces it. It is empty if they are.
func (v *viewer) asked(s *segment, was, is *Claim) string {
	want := v.truth.between(v.domain, v.sight(was), s.from, s.to)
	ordinary := len(want)
	want = append(want, v.replaced(was, is, s.to)...)
	missing := map[told]int{}
	for n, e := range want {
		missing[toldBy(e)] = n
	}
	change := fmt.Sprintf("by the claims %s and then %s", was, is)
	changed := false
	for _, e := range s.events {
		if e.Object.Key.Cluster != is.Cluster {
			continue
		}
		what := fmt.Sprintf("%s, %s of %v at %d", change, e.Type, e.Object.Key, e.Object.State.RV)
		n, ok := missing[toldBy(e)]
		switch {
		case !ok && v.truth.vanished[e.Object.State.UID]:
			continue
		case !ok:
			return what + " is not asked for"
		case !e.Object.State.sameContent(want[n].Object.State):
			return fmt.Sprintf("%s must be %+v, and is %+v", what, want[n].Object.State, e.Object.State)
		case n < ordinary && changed:
			return what + " comes after the change"
		}
		changed = n >= ordinary
		delete(missing, toldBy(e))
	}
	for e, n := range missing {
		if !v.truth.vanished[want[n].Object.State.UID] {
			return fmt.Sprintf("%s, it lacks %s of %v at %d", change, e.kind, e.key, e.rv)
		}
	}
	return ""
}

// told tells events apart.
type told struct {
	key  Key
	rv   uint64
	kind string
}

func toldBy(e Event) told { return told{e.Object.Key, e.Object.State.RV, e.Type} }

// replaced are the events by which one claim replaces another at a resource version.
func (v *viewer) replaced(was, is *Claim, rv uint64) []Event {
	if was == is {
		return nil
	}
	var events []Event
	shown, shows := v.truth.at(v.domain, v.sight(was), rv), v.truth.at(v.domain, v.sight(is), rv)
	for k, state := range shows {
		if _, ok := shown[k]; !ok {
			events = append(events, Event{Type: Added, Object: Object{k, state}})
		}
	}
	for k, state := range shown {
		if _, ok := shows[k]; !ok {
			state.RV = rv
			events = append(events, Event{Type: Deleted, Object: Object{k, state}})
		}
	}
	return events
}
