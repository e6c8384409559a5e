package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// reader lists from a target.
type reader struct {
	target *target
	rec    *recorder
	group  int
	// client names the client of a view whose watches go on from its lists.
	client string
}

// ask is what a list asks for.
type ask struct {
	conn  *conn
	scope history.Scope
	match history.Match
	rv    uint64
	limit int
}

// list reads a whole list and records it. Without an error there is a list.
func (r *reader) list(ctx context.Context, a ask) (*history.List, error) {
	l := &history.List{
		ID: r.rec.id(), Name: fmt.Sprintf("%s %s %+v limit=%d %s", r.target.domain.Server, r.target.domain.Resource, a.scope, a.limit, a.match),
		Domain: r.target.domain, Scope: a.scope, Match: a.match, Wanted: a.rv, Group: r.group, Start: r.rec.now(),
		View: r.target.claimed, Client: r.client,
	}
	token := ""
	for {
		page, items, err := r.page(ctx, a, token)
		if err != nil {
			return nil, err
		}
		l.Pages = append(l.Pages, page.seen)
		for _, o := range items {
			if r.target.explained(a.scope, o.Key) {
				l.Items = append(l.Items, o)
			}
		}
		if token = page.token; token == "" {
			break
		}
	}
	l.End = r.rec.now()
	r.rec.list(l)
	return l, nil
}

type page struct {
	seen  history.Page
	token string
}

func (r *reader) page(ctx context.Context, a ask, token string) (page, []history.Object, error) {
	query := selectors(a.scope)
	if a.limit > 0 {
		query.Set("limit", strconv.Itoa(a.limit))
	}
	switch {
	case token != "":
		query.Set("continue", token)
	case a.match == history.Any:
		query.Set("resourceVersion", "0")
	case a.match == history.Exact, a.match == history.NotOlderThan:
		query.Set("resourceVersion", strconv.FormatUint(a.rv, 10))
		query.Set("resourceVersionMatch", string(a.match))
	}
	answer, err := r.get(ctx, a, query)
	if err != nil {
		return page{}, nil, err
	}
	var got list
	if err := json.Unmarshal(answer, &got); err != nil {
		return page{}, nil, err
	}
	rv, err := strconv.ParseUint(got.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return page{}, nil, fmt.Errorf("resource version of a list: %w", err)
	}
	items := make([]history.Object, 0, len(got.Items))
	for _, o := range got.Items {
		seen, err := o.seen(r.target.domain)
		if err != nil {
			return page{}, nil, err
		}
		items = append(items, seen)
	}
	return page{token: got.Metadata.Continue, seen: history.Page{
		RV: rv, More: got.Metadata.Continue != "", Remaining: got.Metadata.RemainingItemCount != nil, Items: len(items),
	}}, items, nil
}

// statusError is a refusal.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d: %s", e.code, e.text) }

func (r *reader) get(ctx context.Context, a ask, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*opTimeout)
	defer cancel()
	code, answer, err := a.conn.do(ctx, http.MethodGet, r.target.collection(a.scope)+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		r.rec.said(a.scope.Cluster, answer)
		return nil, &statusError{code, string(answer)}
	}
	return answer, nil
}

// lister is one client that lists again and again, each time in another way.
type lister struct {
	reader

	rng   *rand.Rand
	pause time.Duration
	// tokens are the latest continue tokens by logical cluster.
	tokens map[string]string
}

func (l *lister) run(ctx context.Context) {
	l.tokens = map[string]string{}
	for ctx.Err() == nil {
		l.step(ctx)
		pace(ctx, l.pause/2+time.Duration(l.rng.Int64N(int64(l.pause))))
	}
}

// step makes one list of some kind; refusals are part of life under faults.
func (l *lister) step(ctx context.Context) {
	t := l.target
	cluster := t.clusters[l.rng.IntN(len(t.clusters))]
	a := ask{conn: t.direct, scope: t.everything(), match: history.Consistent}
	if l.rng.IntN(2) == 0 {
		a.scope = t.one(cluster)
		if t.proxied != nil && l.rng.IntN(2) == 0 {
			a.conn = t.proxied
		}
	}
	switch l.rng.IntN(6) {
	case 0:
		_, _ = l.list(ctx, a)
	case 1, 2:
		a.limit = 3 + l.rng.IntN(6)
		_, _ = l.list(ctx, a)
	case 3:
		a.scope.Label, a.limit = colours[l.rng.IntN(len(colours))], 4*l.rng.IntN(2)
		_, _ = l.list(ctx, a)
	case 4:
		l.parts(ctx, a)
	case 5:
		l.reach(ctx, cluster)
	}
}

// parts lists everything and then its parts at the same resource version.
func (l *lister) parts(ctx context.Context, a ask) {
	l.group = l.rec.id()
	defer func() { l.group = 0 }()
	whole, err := l.list(ctx, a)
	if err != nil {
		return
	}
	a.match, a.rv = history.Exact, whole.RV()
	for _, part := range split(ring, uint64(2+l.rng.IntN(3))) {
		a.scope.Ranges = []history.Range{part}
		a.limit = 5 * l.rng.IntN(2)
		if _, err := l.list(ctx, a); err != nil {
			return // the whole and some parts say nothing
		}
	}
	l.rec.complete(l.group)
}

// reach tries to use the continue token of another logical cluster, and old and
// newer resource versions of its own.
func (l *lister) reach(ctx context.Context, cluster string) {
	a := ask{conn: l.target.direct, scope: l.target.one(cluster)}
	for other, token := range l.tokens {
		if other == cluster || token == "" {
			continue
		}
		var refusal *statusError
		_, err := l.get(ctx, a, url.Values{"limit": {"2"}, "continue": {token}})
		switch {
		case err == nil:
			record(l.rec, &l.rec.history.Probes, history.Probe{Name: "continue token of " + other + " in " + cluster, Code: http.StatusOK})
		case asStatus(err, &refusal) && refusal.code < http.StatusInternalServerError && refusal.code != http.StatusTooManyRequests && refusal.code != http.StatusForbidden:
			record(l.rec, &l.rec.history.Probes, history.Probe{Name: "continue token of " + other + " in " + cluster, Code: refusal.code})
		}
	}
	answer, err := l.get(ctx, a, url.Values{"limit": {"2"}})
	if err != nil {
		return
	}
	var first struct{ Metadata metav1.ListMeta }
	if json.Unmarshal(answer, &first) != nil {
		return
	}
	l.tokens[cluster] = first.Metadata.Continue
	rv, err := strconv.ParseUint(first.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return
	}
	a.rv = rv
	for _, match := range []history.Match{history.NotOlderThan, history.Exact, history.Any} {
		a.match = match
		_, _ = l.list(ctx, a)
	}
}
