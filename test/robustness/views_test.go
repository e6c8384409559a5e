package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/robustness/history"
)

const (
	apisPath  = "/apis/apis.kcp.io/v1alpha2/"
	viewed    = "robust"
	viewGroup = "robust.example"
)

// views is what the provider of an export sees of its consumers: a resource of its own,
// and one that it claims, whose claims come and go.
type views struct {
	provider *conn
	cluster  string
	// claimed is what the view shows by its claims, and own its own resource.
	claimed, own *target
	// accepted is what consumers have answered, and exported whether the export claims.
	accepted map[string]wanted
	exported bool

	rng     *rand.Rand
	rec     *recorder
	pause   time.Duration
	viewers []*viewer
}

// wanted is a claim as a consumer answers it. The zero value rejects it.
type wanted struct {
	held   bool
	labels []string
	// expression says that the labels are in an expression.
	expression bool
}

// selector is that of the binding.
func (w wanted) selector() map[string]any {
	switch {
	case len(w.labels) == 0:
		return map[string]any{"matchAll": true}
	case w.expression:
		return map[string]any{"matchExpressions": []map[string]any{{"key": colour, "operator": "In", "values": w.labels}}}
	}
	return map[string]any{"matchLabels": map[string]string{colour: w.labels[0]}}
}

// answers are what a consumer may say.
var answers = []wanted{
	{}, {held: true}, {held: true, labels: colours[:1]}, {held: true, labels: colours[1:]}, {held: true, labels: colours, expression: true},
}

func claim(more map[string]any) []map[string]any {
	asked := map[string]any{"group": "", "resource": "configmaps", "verbs": []string{"*"}}
	maps.Copy(asked, more)
	return []map[string]any{asked}
}

// newViews makes an export in a logical cluster, which the clusters of a target bind,
// and returns it with what it shows: the target as it is claimed, and a resource of its own.
func newViews(t *testing.T, provider *conn, cluster string, of *target) *views {
	t.Helper()
	v := &views{provider: provider, cluster: cluster, accepted: map[string]wanted{}, exported: true}
	through := *of
	through.prefix, through.claimed, through.proxied = "/services/apiexport/"+cluster+"/"+viewed, true, nil
	v.claimed = &through
	plain := target{group: "/apis/" + viewGroup + "/v1", apiVersion: viewGroup + "/v1", kind: "Trinket", domain: history.Domain{Resource: "trinkets"}}.on(of.domain.Server, of.direct, nil, of.clusters)
	own := *plain
	own.prefix, own.beside = through.prefix, plain
	v.own = &own

	schema := "v1.trinkets." + viewGroup
	v.must(t, provider, cluster, strings.Replace(apisPath, "v1alpha2", "v1alpha1", 1)+"apiresourceschemas", map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": map[string]any{"name": schema},
		"spec": map[string]any{
			"group": viewGroup, "scope": "Cluster", "names": map[string]any{"plural": "trinkets", "singular": "trinket", "kind": "Trinket", "listKind": "TrinketList"},
			"versions": []map[string]any{{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"type": "object"}}},
		},
	})
	v.must(t, provider, cluster, apisPath+"apiexports", map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": map[string]any{"name": viewed},
		"spec": map[string]any{
			"resources":        []map[string]any{{"group": viewGroup, "name": "trinkets", "schema": schema, "storage": map[string]any{"crd": map[string]any{}}}},
			"permissionClaims": claim(nil),
		},
	})
	for _, consumer := range of.clusters {
		v.must(t, of.direct, consumer, apisPath+"apibindings", map[string]any{
			"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": map[string]any{"name": viewed},
			"spec": map[string]any{
				"reference":        map[string]any{"export": map[string]any{"path": cluster, "name": viewed}},
				"permissionClaims": claim(map[string]any{"state": "Accepted", "selector": map[string]any{"matchAll": true}}),
			},
		})
		v.accepted[consumer] = wanted{held: true}
		require.Eventually(t, func() bool {
			_, says := v.binding(t.Context(), consumer)
			return says == v.effect(consumer)
		}, testTimeout, 20*time.Millisecond, "the claim has effect in %s", consumer)
		require.Eventually(t, func() bool {
			code, _, err := of.direct.do(t.Context(), http.MethodGet, own.collection(own.one(consumer)), nil)
			return err == nil && code == http.StatusOK
		}, testTimeout, 20*time.Millisecond, "the view is open to %s", consumer)
	}
	return v
}

func (*views) must(t *testing.T, c *conn, cluster, path string, body any) {
	t.Helper()
	var answer []byte
	require.Eventually(t, func() bool {
		code, says, err := c.do(t.Context(), http.MethodPost, "/clusters/"+cluster+path, body)
		answer = says
		return err == nil && (code == http.StatusCreated || code == http.StatusConflict)
	}, testTimeout, 50*time.Millisecond, "%s: %s", path, func() string { return string(answer) })
}

// effect is how the selector of a claim reads that has effect; empty if none has.
func (v *views) effect(cluster string) string {
	if w := v.accepted[cluster]; w.held && v.exported {
		return textOf(w.selector())
	}
	return ""
}

// binding returns the binding of a logical cluster, and the selector that has effect.
func (v *views) binding(ctx context.Context, cluster string) (map[string]any, string) {
	b := v.get(ctx, v.claimed.direct, "/clusters/"+cluster+apisPath+"apibindings/"+viewed)
	if b == nil {
		return nil, "unknown"
	}
	status, _ := b["status"].(map[string]any)
	applied, _ := status["appliedPermissionClaims"].([]any)
	if len(applied) == 0 {
		return b, ""
	}
	first, _ := applied[0].(map[string]any)
	return b, textOf(first["selector"])
}

// textOf is the JSON of a selector.
func textOf(selector any) string {
	text, err := json.Marshal(selector)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (*views) get(ctx context.Context, c *conn, path string) map[string]any {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	code, answer, err := c.do(ctx, http.MethodGet, path, nil)
	var obj map[string]any
	if err != nil || code != http.StatusOK || json.Unmarshal(answer, &obj) != nil {
		return nil
	}
	return obj
}

func (*views) put(ctx context.Context, c *conn, path string, obj map[string]any) bool {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	code, _, err := c.do(ctx, http.MethodPut, path, obj)
	return err == nil && code == http.StatusOK
}

// begin records what is accepted, and starts who changes it, and who looks.
func (v *views) begin(ctx, writing context.Context, r *run, writers, watchers *sync.WaitGroup) {
	v.rng, v.rec, v.pause, v.viewers = r.rng(), r.rec, r.pause, nil
	for _, cluster := range v.claimed.clusters {
		w := v.accepted[cluster]
		record(v.rec, &v.rec.history.Claims, &history.Claim{Domain: v.claimed.domain, Cluster: cluster, Held: w.held, Labels: w.labels, Start: 1, End: 1})
	}
	writers.Go(func() { v.run(writing) })
	v.watch(ctx, r, watchers)
	w := r.newWriter(v.claimed, false)
	writers.Go(func() { w.run(writing) })
	coloured := history.Scope{Label: colours[0]}
	l := &pager{reader: reader{target: v.claimed, rec: r.rec}, conn: v.claimed.direct, scopes: []history.Scope{{}, v.claimed.one(v.claimed.clusters[0]), coloured}, limit: 7, pause: 2 * r.pause}
	writers.Go(func() { l.run(writing) })
}

// run changes claims until ctx is done, one after the other.
func (v *views) run(ctx context.Context) {
	v.answer(ctx, v.claimed.clusters[0], answers[2]) // long enough to be sure of what it lets be seen
	pace(ctx, 3*time.Second)
	for ctx.Err() == nil {
		pace(ctx, upTo(v.rng, 2*time.Second))
		switch cluster := v.claimed.clusters[v.rng.IntN(len(v.claimed.clusters))]; {
		case !v.exported:
			v.export(ctx, true)
		case v.rng.IntN(8) == 0:
			v.export(ctx, false)
		default:
			v.answer(ctx, cluster, answers[v.rng.IntN(len(answers))])
		}
	}
}

// answer has a consumer answer the claim, and waits until it has effect.
func (v *views) answer(ctx context.Context, cluster string, w wanted) {
	state := "Accepted"
	if !w.held {
		state = "Rejected"
	}
	asked := claim(map[string]any{"state": state, "selector": w.selector()})
	v.accepted[cluster] = w
	v.change(ctx, []string{cluster}, v.claimed.direct, "/clusters/"+cluster+apisPath+"apibindings/"+viewed, asked)
}

// export has the export claim, or not, and waits until that has effect.
func (v *views) export(ctx context.Context, claims bool) {
	asked := []map[string]any{}
	if claims {
		asked = claim(nil)
	}
	v.exported = claims
	v.change(ctx, v.claimed.clusters, v.provider, "/clusters/"+v.cluster+apisPath+"apiexports/"+viewed, asked)
}

// change writes the claims of an object until that succeeds, and waits until they have
// effect in logical clusters: what began is ended, whatever ends the run.
func (v *views) change(ctx context.Context, clusters []string, c *conn, path string, asked []map[string]any) {
	ctx = context.WithoutCancel(ctx)
	begun := map[string]*history.Claim{}
	for _, cluster := range clusters {
		w := v.accepted[cluster]
		begun[cluster] = &history.Claim{Domain: v.claimed.domain, Cluster: cluster, Held: w.held && v.exported, Labels: w.labels, After: v.version(ctx, cluster), Start: v.rec.now()}
		record(v.rec, &v.rec.history.Claims, begun[cluster])
	}
	for done := false; !done; {
		if obj := v.get(ctx, c, path); obj != nil {
			spec, _ := obj["spec"].(map[string]any)
			spec["permissionClaims"] = asked
			done = v.put(ctx, c, path, obj)
		}
		if !done {
			pace(ctx, v.pause)
		}
	}
	for cluster, claim := range begun {
		for {
			if b, says := v.binding(ctx, cluster); says == v.effect(cluster) {
				claim.Version = versionOf(b)
				break
			}
			pace(ctx, v.pause/4)
		}
		claim.End = v.rec.now()
	}
}

// version returns the resource version of the binding of a logical cluster.
func (v *views) version(ctx context.Context, cluster string) uint64 {
	for {
		if b, _ := v.binding(ctx, cluster); b != nil {
			return versionOf(b)
		}
		pace(ctx, v.pause)
	}
}

func versionOf(obj map[string]any) (rv uint64) {
	metadata, _ := obj["metadata"].(map[string]any)
	text, _ := metadata["resourceVersion"].(string)
	_, _ = fmt.Sscan(text, &rv)
	return rv
}

// viewer is a watcher of what is claimed, and the logical clusters in which it has seen
// what was written when all were open again.
type viewer struct {
	*watcher

	mu      sync.Mutex
	fenced  []string
	through uint64
}

func (v *views) watch(ctx context.Context, r *run, wg *sync.WaitGroup) {
	t := v.claimed
	one := t.one(t.clusters[0])
	add := func(name string, scope history.Scope, streaming bool) {
		name = t.domain.Server + " " + t.domain.Resource + " in the view, " + name
		w := &viewer{watcher: &watcher{reader: reader{target: t, rec: r.rec, client: name}, name: name, conn: t.direct, scope: scope, streaming: streaming, rng: r.rng()}}
		w.watcher.noticed = w.notice
		v.viewers = append(v.viewers, w)
		wg.Go(func() { w.run(ctx) })
	}
	add("everything", history.Scope{}, false)
	add("everything, too", history.Scope{}, false)
	add("everything, streaming", history.Scope{}, true)
	add("by colour", history.Scope{Label: colours[0]}, false)
	add("first half", history.Scope{Ranges: split(ring, 2)[:1]}, false)
	add("one", one, false)
}

func (w *viewer) notice(k history.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.HasPrefix(k.Name, "fence-") && !slices.Contains(w.fenced, k.Cluster) {
		w.fenced = append(w.fenced, k.Cluster)
	}
}

// openAll accepts all in all logical clusters, for the end of a run.
func (v *views) openAll(r *run) {
	ctx := r.t.Context()
	if !v.exported {
		v.export(ctx, true)
	}
	for _, cluster := range v.claimed.clusters {
		v.answer(ctx, cluster, wanted{held: true})
	}
	for _, w := range v.viewers {
		w.stopCutting()
	}
}

// behind returns how many viewers have yet to see what was written last, by fences that
// were written since they saw that all is open.
func (v *views) behind(rv uint64) int {
	behind := 0
	for _, w := range v.viewers {
		w.mu.Lock()
		all := len(w.fenced) == len(v.claimed.clusters) || w.scope.Cluster != "" && len(w.fenced) == 1
		if all && w.through == 0 {
			w.through = rv + 1
		}
		through := w.through
		w.mu.Unlock()
		if !all || w.reached() < through {
			behind++
		}
	}
	return behind
}

// through says that the viewers had time to see all.
func (v *views) through(r *run) {
	for _, w := range v.viewers {
		w.mu.Lock()
		require.NotZero(r.t, w.through, "%s sees what was written when all was open again", w.name)
		w.watcher.through(w.through)
		w.mu.Unlock()
	}
	_, err := (&reader{target: v.claimed, rec: r.rec}).list(r.t.Context(), ask{conn: v.claimed.direct, match: history.Consistent})
	require.NoError(r.t, err)
}

// addViews has the clients of the run look through the view of an export, too.
func (r *run) addViews(provider *conn, cluster string, of *target) {
	r.views = newViews(r.t, provider, cluster, of)
	r.targets = slices.Insert(r.targets, 0, r.views.own)
}
