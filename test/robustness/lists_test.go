package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// reader lists a target.
type reader struct {
	target *target
	rec    *recorder
	group  int
	// client is the name of the sessions that continue from the lists, if any.
	client string
}

// listOptions are the options of a list.
type listOptions struct {
	conn  *conn
	scope history.Scope
	match history.Match
	rv    uint64
	limit int
}

// list reads all pages of a list and records it.
func (r *reader) list(ctx context.Context, a listOptions) (*history.List, error) {
	l := &history.List{
		ID: r.rec.id(), Name: fmt.Sprintf("%s %s %+v limit=%d %s", r.target.domain.Server, r.target.domain.Resource, a.scope, a.limit, a.match),
		Domain: r.target.domain, Scope: a.scope, Match: a.match, Wanted: a.rv, Group: r.group, Start: r.rec.now(),
		VirtualWorkspace: r.target.claimed, Client: r.client,
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

func (r *reader) page(ctx context.Context, a listOptions, token string) (page, []history.Object, error) {
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
	got, err := a.conn.list(ctx, r.rec, a.scope.Cluster, r.target.collection(a.scope), query)
	if err != nil {
		return page{}, nil, err
	}
	rv, err := strconv.ParseUint(got.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return page{}, nil, fmt.Errorf("resource version of a list: %w", err)
	}
	items := make([]history.Object, 0, len(got.Items))
	for _, o := range got.Items {
		seen, err := o.historyObject(r.target.domain)
		if err != nil {
			return page{}, nil, err
		}
		items = append(items, seen)
	}
	return page{token: got.Metadata.Continue, seen: history.Page{
		RV: rv, More: got.Metadata.Continue != "", Remaining: got.Metadata.RemainingItemCount != nil, Items: len(items),
	}}, items, nil
}

// lister is a client that lists repeatedly with random options.
type lister struct {
	reader

	rng *rand.Rand
	// tokens are the latest continue tokens by logical cluster.
	tokens map[string]string
}

// step lists once. Errors are expected because of faults.
func (l *lister) step(ctx context.Context) {
	t := l.target
	cluster := t.clusters[l.rng.IntN(len(t.clusters))]
	a := listOptions{conn: t.direct, scope: t.everything(), match: history.Consistent}
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
		l.probe(ctx, cluster)
	}
}

// parts lists everything, and then its parts at the same resource version.
func (l *lister) parts(ctx context.Context, a listOptions) {
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
			return // an incomplete group is ignored
		}
	}
	l.rec.completeGroup(l.group)
}

// probe sends the continue tokens of other logical clusters, and lists at a version of its own.
func (l *lister) probe(ctx context.Context, cluster string) {
	a := listOptions{conn: l.target.direct, scope: l.target.one(cluster)}
	list := func(query url.Values) (*list, error) {
		return a.conn.list(ctx, l.rec, cluster, l.target.collection(a.scope), query)
	}
	for other, token := range l.tokens {
		if other == cluster || token == "" {
			continue
		}
		status := &statusError{code: http.StatusOK}
		_, err := list(url.Values{"limit": {"2"}, "continue": {token}})
		if err != nil && (!errors.As(err, &status) || unavailable(status.code)) {
			continue
		}
		record(l.rec, &l.rec.history.Probes, history.Probe{Name: "continue token of " + other + " in " + cluster, Code: status.code})
	}
	first, err := list(url.Values{"limit": {"2"}})
	if err != nil {
		return
	}
	l.tokens[cluster] = first.Metadata.Continue
	rv, err := strconv.ParseUint(first.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return
	}
	a.rv = rv
	for _, a.match = range []history.Match{history.NotOlderThan, history.Exact, history.Any} {
		_, _ = l.list(ctx, a)
	}
}

// unavailable reports whether a server under faults may respond to any request with the status code.
func unavailable(code int) bool {
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == http.StatusForbidden
}
