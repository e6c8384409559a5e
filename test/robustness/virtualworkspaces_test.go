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
	apisPath    = "/apis/apis.kcp.io/v1alpha2/"
	exportName  = "robust"
	exportGroup = "robust.example"
)

// exportClient is the provider of an export. Its virtual workspace contains a resource of the
// export and a claimed one, and the claims change.
type exportClient struct {
	provider *conn
	cluster  string
	// claimed is the claimed resource in the virtual workspace, and own the resource of the export.
	claimed, own *target
	// accepted contains the decisions of the consumers. exportClaims is true if the export has the
	// claim.
	accepted     map[string]claimDecision
	exportClaims bool

	rng      *rand.Rand
	rec      *recorder
	pause    time.Duration
	watchers []*exportWatcher
}

// claimDecision is the decision of a consumer about the claim. The zero value rejects it.
type claimDecision struct {
	accepted bool
	labels   []string
	// expression is true if the selector uses matchExpressions.
	expression bool
}

// selector returns the selector of the binding.
func (w claimDecision) selector() map[string]any {
	switch {
	case len(w.labels) == 0:
		return map[string]any{"matchAll": true}
	case w.expression:
		return map[string]any{"matchExpressions": []map[string]any{{"key": colour, "operator": "In", "values": w.labels}}}
	}
	return map[string]any{"matchLabels": map[string]string{colour: w.labels[0]}}
}

// possibleDecisions are the decisions of a consumer.
var possibleDecisions = []claimDecision{
	{}, {accepted: true}, {accepted: true, labels: colours[:1]}, {accepted: true, labels: colours[1:]}, {accepted: true, labels: colours, expression: true},
}

func claim(more map[string]any) []map[string]any {
	claims := map[string]any{"group": "", "resource": "configmaps", "verbs": []string{"*"}}
	maps.Copy(claims, more)
	return []map[string]any{claims}
}

// newExportClient creates an export in a logical cluster, and binds it in the clusters of a target.
func newExportClient(t *testing.T, provider *conn, cluster string, of *target) *exportClient {
	t.Helper()
	v := &exportClient{provider: provider, cluster: cluster, accepted: map[string]claimDecision{}, exportClaims: true}
	through := *of
	through.prefix, through.claimed, through.proxied = "/services/apiexport/"+cluster+"/"+exportName, true, nil
	v.claimed = &through
	plain := target{group: "/apis/" + exportGroup + "/v1", apiVersion: exportGroup + "/v1", kind: "Trinket", domain: history.Domain{Resource: "trinkets"}}.on(of.domain.Server, of.direct, nil, of.clusters)
	own := *plain
	own.prefix, own.plain = through.prefix, plain
	v.own = &own

	schema := "v1.trinkets." + exportGroup
	v.must(t, provider, cluster, strings.Replace(apisPath, "v1alpha2", "v1alpha1", 1)+"apiresourceschemas", map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": map[string]any{"name": schema},
		"spec": map[string]any{
			"group": exportGroup, "scope": "Cluster", "names": map[string]any{"plural": "trinkets", "singular": "trinket", "kind": "Trinket", "listKind": "TrinketList"},
			"versions": []map[string]any{{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"type": "object"}}},
		},
	})
	v.must(t, provider, cluster, apisPath+"apiexports", map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": map[string]any{"name": exportName},
		"spec": map[string]any{
			"resources":        []map[string]any{{"group": exportGroup, "name": "trinkets", "schema": schema, "storage": map[string]any{"crd": map[string]any{}}}},
			"permissionClaims": claim(nil),
		},
	})
	for _, consumer := range of.clusters {
		v.must(t, of.direct, consumer, apisPath+"apibindings", map[string]any{
			"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": map[string]any{"name": exportName},
			"spec": map[string]any{
				"reference":        map[string]any{"export": map[string]any{"path": cluster, "name": exportName}},
				"permissionClaims": claim(map[string]any{"state": "Accepted", "selector": map[string]any{"matchAll": true}}),
			},
		})
		v.accepted[consumer] = claimDecision{accepted: true}
		require.Eventually(t, func() bool {
			_, text := v.binding(t.Context(), consumer)
			return text == v.effect(consumer)
		}, testTimeout, 20*time.Millisecond, "the claim is not effective in %s", consumer)
		require.Eventually(t, func() bool {
			code, _, err := of.direct.do(t.Context(), http.MethodGet, own.collection(own.one(consumer)), nil)
			return err == nil && code == http.StatusOK
		}, testTimeout, 20*time.Millisecond, "the virtual workspace does not contain %s", consumer)
	}
	return v
}

func (*exportClient) must(t *testing.T, c *conn, cluster, path string, body any) {
	t.Helper()
	var response []byte
	require.Eventually(t, func() bool {
		code, text, err := c.do(t.Context(), http.MethodPost, "/clusters/"+cluster+path, body)
		response = text
		return err == nil && (code == http.StatusCreated || code == http.StatusConflict)
	}, testTimeout, 50*time.Millisecond, "%s: %s", path, func() string { return string(response) })
}

// effect returns the selector of the expected effective claim as JSON, or "".
func (v *exportClient) effect(cluster string) string {
	if w := v.accepted[cluster]; w.accepted && v.exportClaims {
		return textOf(w.selector())
	}
	return ""
}

// binding returns the binding of a logical cluster, and the selector of its effective claim.
func (v *exportClient) binding(ctx context.Context, cluster string) (map[string]any, string) {
	b := v.get(ctx, v.claimed.direct, "/clusters/"+cluster+apisPath+"apibindings/"+exportName)
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

// textOf returns the JSON of a selector.
func textOf(selector any) string {
	text, err := json.Marshal(selector)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (*exportClient) get(ctx context.Context, c *conn, path string) map[string]any {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	code, response, err := c.do(ctx, http.MethodGet, path, nil)
	var obj map[string]any
	if err != nil || code != http.StatusOK || json.Unmarshal(response, &obj) != nil {
		return nil
	}
	return obj
}

func (*exportClient) put(ctx context.Context, c *conn, path string, obj map[string]any) bool {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	code, _, err := c.do(ctx, http.MethodPut, path, obj)
	return err == nil && code == http.StatusOK
}

// begin records the current claims, and starts the clients.
func (v *exportClient) begin(ctx, writing context.Context, r *run, writers, watchers *sync.WaitGroup) {
	v.rng, v.rec, v.pause, v.watchers = r.rng(), r.rec, r.pause, nil
	for _, cluster := range v.claimed.clusters {
		w := v.accepted[cluster]
		record(v.rec, &v.rec.history.Claims, &history.Claim{Domain: v.claimed.domain, Cluster: cluster, Effective: w.accepted, Labels: w.labels, Start: 1, End: 1})
	}
	writers.Go(func() { v.run(writing) })
	v.watch(ctx, r, watchers)
	w := r.newWriter(v.claimed, false)
	writers.Go(func() { repeat(writing, w.rng, w.pause, w.step) })
	coloured := history.Scope{Label: colours[0]}
	l := &pager{reader: reader{target: v.claimed, rec: r.rec}, conn: v.claimed.direct, scopes: []history.Scope{{}, v.claimed.one(v.claimed.clusters[0]), coloured}, limit: 7, pause: 2 * r.pause}
	writers.Go(func() { l.run(writing) })
}

// run changes one claim at a time until ctx is done.
func (v *exportClient) run(ctx context.Context) {
	// Checks of the first decision must not depend on their tolerances or on the speed of the machine.
	v.setDecision(ctx, v.claimed.clusters[0], possibleDecisions[2])
	pace(ctx, 3*time.Second)
	for enough := v.rec.writes() + 100; ctx.Err() == nil && v.rec.writes() < enough; {
		pace(ctx, v.pause)
	}
	for ctx.Err() == nil {
		pace(ctx, upTo(v.rng, 2*time.Second))
		switch cluster := v.claimed.clusters[v.rng.IntN(len(v.claimed.clusters))]; {
		case !v.exportClaims:
			v.setExportClaim(ctx, true)
		case v.rng.IntN(8) == 0:
			v.setExportClaim(ctx, false)
		default:
			v.setDecision(ctx, cluster, possibleDecisions[v.rng.IntN(len(possibleDecisions))])
		}
	}
}

// setDecision updates the binding of a consumer, and waits until the claim is effective.
func (v *exportClient) setDecision(ctx context.Context, cluster string, w claimDecision) {
	state := "Accepted"
	if !w.accepted {
		state = "Rejected"
	}
	claims := claim(map[string]any{"state": state, "selector": w.selector()})
	v.accepted[cluster] = w
	v.change(ctx, []string{cluster}, v.claimed.direct, "/clusters/"+cluster+apisPath+"apibindings/"+exportName, claims)
}

// setExportClaim adds or removes the claim of the export, and waits until the change is effective.
func (v *exportClient) setExportClaim(ctx context.Context, present bool) {
	claims := []map[string]any{}
	if present {
		claims = claim(nil)
	}
	v.exportClaims = present
	v.change(ctx, v.claimed.clusters, v.provider, "/clusters/"+v.cluster+apisPath+"apiexports/"+exportName, claims)
}

// change writes the claims of an object, and waits until they are effective in the logical
// clusters. The end of the run does not interrupt it, because the record of a change must be
// complete.
func (v *exportClient) change(ctx context.Context, clusters []string, c *conn, path string, claims []map[string]any) {
	ctx = context.WithoutCancel(ctx)
	begun := map[string]*history.Claim{}
	for _, cluster := range clusters {
		w := v.accepted[cluster]
		begun[cluster] = &history.Claim{Domain: v.claimed.domain, Cluster: cluster, Effective: w.accepted && v.exportClaims, Labels: w.labels, After: v.version(ctx, cluster), Start: v.rec.now()}
		record(v.rec, &v.rec.history.Claims, begun[cluster])
	}
	for done := false; !done; {
		if obj := v.get(ctx, c, path); obj != nil {
			spec, _ := obj["spec"].(map[string]any)
			spec["permissionClaims"] = claims
			done = v.put(ctx, c, path, obj)
		}
		if !done {
			pace(ctx, v.pause)
		}
	}
	for cluster, claim := range begun {
		for {
			if b, text := v.binding(ctx, cluster); text == v.effect(cluster) {
				claim.Version = versionOf(b)
				break
			}
			pace(ctx, v.pause/4)
		}
		claim.End = v.rec.now()
	}
}

// version returns the resource version of the binding of a logical cluster.
func (v *exportClient) version(ctx context.Context, cluster string) uint64 {
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

// exportWatcher is a watcher of the claimed resource. fenced contains the logical clusters of which
// it has received an object that was created after all claims were accepted.
type exportWatcher struct {
	*watcher

	mu      sync.Mutex
	fenced  []string
	through uint64
}

func (v *exportClient) watch(ctx context.Context, r *run, wg *sync.WaitGroup) {
	t := v.claimed
	one := t.one(t.clusters[0])
	add := func(name string, scope history.Scope, streaming bool) {
		w := &exportWatcher{watcher: r.newWatcher(t, "in the virtual workspace, "+name, t.direct, scope, streaming)}
		w.client, w.onAdded = w.name, w.recordFence
		v.watchers = append(v.watchers, w)
		wg.Go(func() { w.run(ctx) })
	}
	add("everything", history.Scope{}, false)
	add("everything, too", history.Scope{}, false)
	add("everything, streaming", history.Scope{}, true)
	add("by colour", history.Scope{Label: colours[0]}, false)
	add("first half", history.Scope{Ranges: split(ring, 2)[:1]}, false)
	add("one", one, false)
}

func (w *exportWatcher) recordFence(k history.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.HasPrefix(k.Name, "fence-") && !slices.Contains(w.fenced, k.Cluster) {
		w.fenced = append(w.fenced, k.Cluster)
	}
}

// acceptAll accepts the claim in all logical clusters at the end of a run.
func (v *exportClient) acceptAll(r *run) {
	ctx := r.t.Context()
	if !v.exportClaims {
		v.setExportClaim(ctx, true)
	}
	for _, cluster := range v.claimed.clusters {
		v.setDecision(ctx, cluster, claimDecision{accepted: true})
	}
	for _, w := range v.watchers {
		w.keepOpen.Store(true)
	}
}

// behind returns the number of watchers that have not received the latest object since they
// received an object of each logical cluster.
func (v *exportClient) behind(rv uint64) int {
	behind := 0
	for _, w := range v.watchers {
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

// through records that the watchers had time to receive all events.
func (v *exportClient) through(r *run) {
	for _, w := range v.watchers {
		w.mu.Lock()
		require.NotZero(r.t, w.through, "%s did not receive the objects created after all claims were accepted", w.name)
		w.watcher.through(w.through)
		w.mu.Unlock()
	}
	_, err := (&reader{target: v.claimed, rec: r.rec}).list(r.t.Context(), listOptions{conn: v.claimed.direct, match: history.Consistent})
	require.NoError(r.t, err)
}

// addExport adds clients of the virtual workspace of an export.
func (r *run) addExport(provider *conn, cluster string, of *target) {
	r.export = newExportClient(r.t, provider, cluster, of)
	r.targets = slices.Insert(r.targets, 0, r.export.own)
}
