package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/robustness/history"
)

const (
	workspacesPath      = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
	logicalClustersPath = "/apis/core.kcp.io/v1alpha1/logicalclusters"
	secretsPath         = "/api/v1/namespaces/default/secrets"
	// workspaceWriters is the number of concurrent writers. They use few names, so that they
	// conflict.
	workspaceWriters = 2
)

// workspaceChurn creates and deletes workspaces with few names in a logical cluster of each shard.
// Their logical clusters are on any shard.
type workspaceChurn struct {
	proxy  *conn
	shards map[string]*conn
	// parents are the logical clusters of the Workspaces, by shard.
	parents map[string]string
	names   []string
	orphans int
}

func newWorkspaceChurn(r *run) *workspaceChurn {
	s := &workspaceChurn{proxy: newConn(r.t, r.cluster.Proxy()), shards: map[string]*conn{}, parents: map[string]string{}, names: []string{"one", "two"}}
	for n, name := range []string{"root", "shard-1"} {
		s.shards[name] = newConn(r.t, r.cluster.Shard(n))
		s.parents[name] = r.targets[n].clusters[1]
	}
	return s
}

// begin starts the writers. It first creates logical clusters without Workspaces, like delayed
// requests would. The garbage collector must delete them.
func (s *workspaceChurn) begin(ctx context.Context, r *run, wg *sync.WaitGroup) {
	for shard, at := range s.shards {
		for owner, parent := range s.parents {
			s.orphans++
			cluster := fmt.Sprintf("late%d", s.orphans)
			r.rec.setShard(cluster, shard)
			late := &corev1alpha1.LogicalCluster{
				TypeMeta: metav1.TypeMeta{APIVersion: corev1alpha1.SchemeGroupVersion.String(), Kind: "LogicalCluster"},
				ObjectMeta: metav1.ObjectMeta{
					Name: corev1alpha1.LogicalClusterName, Finalizers: []string{"core.kcp.io/logicalcluster-deletion"},
					Labels:      map[string]string{"internal.shardplane.io/owner-shard": owner},
					Annotations: map[string]string{"kcp.io/path": "root:" + cluster},
				},
				Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{
					APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Resource: "workspaces", Name: cluster, Cluster: parent, UID: "deleted",
				}},
			}
			code, response, err := at.do(ctx, http.MethodPost, "/clusters/"+cluster+logicalClustersPath, late)
			require.NoError(r.t, err)
			require.Equal(r.t, http.StatusCreated, code, "failed to create a logical cluster on %s: %s", shard, response)
		}
	}
	for range workspaceWriters {
		one := s.writer(r)
		wg.Go(func() { repeat(ctx, one.rng, one.pause, one.step) })
	}
}

func (s *workspaceChurn) writer(r *run) *workspaceWriter {
	return &workspaceWriter{workspaceChurn: s, rec: r.rec, rng: r.rng(), pause: 4 * r.pause}
}

// awaitCompletion creates a Workspace with each name. It records an inventory when each Workspace has one
// logical cluster and vice versa, or the timeout has expired.
func (s *workspaceChurn) awaitCompletion(r *run) {
	last := s.writer(r)
	ctx := r.t.Context()
	for _, parent := range s.parents {
		for _, name := range s.names {
			require.Eventually(r.t, func() bool {
				o := last.request(ctx, history.Get, parent, name, history.Workspace{})
				if o.Outcome == history.NotFound {
					o = last.request(ctx, history.Create, parent, name, history.Workspace{})
				}
				return o.Outcome == history.OK && !o.Seen.Terminating && last.useWhenReady(ctx, o)
			}, testTimeout, 20*time.Millisecond, "workspace %s in %s is not Ready", name, parent)
		}
	}
	var all *history.Inventory
	for deadline := time.Now().Add(testTimeout); ; pace(ctx, 50*time.Millisecond) {
		all = s.inventory(r)
		even := len(all.Workspaces) == len(s.parents)*len(s.names) && len(all.Clusters) == len(all.Workspaces)
		if even || time.Now().After(deadline) {
			break
		}
	}
	r.rec.inventory(all)
}

// inventory lists all Workspaces of the parents, and their logical clusters.
func (s *workspaceChurn) inventory(r *run) *history.Inventory {
	all := &history.Inventory{At: r.rec.now()}
	for _, parent := range s.parents {
		var list tenancyv1alpha1.WorkspaceList
		s.list(r, s.proxy, "/clusters/"+parent+workspacesPath, &list)
		for i := range list.Items {
			all.Workspaces = append(all.Workspaces, seenWorkspace(parent, &list.Items[i]))
			r.rec.setShard(list.Items[i].Spec.Cluster, list.Items[i].Annotations["core.kcp.io/shard"])
		}
	}
	parents := slices.Collect(maps.Values(s.parents))
	for shard, at := range s.shards {
		var list corev1alpha1.LogicalClusterList
		s.list(r, at, "/clusters/*"+logicalClustersPath, &list)
		for i := range list.Items {
			lc := &list.Items[i]
			if owner := lc.Spec.Owner; owner != nil && slices.Contains(parents, owner.Cluster) {
				all.Clusters = append(all.Clusters, history.LogicalCluster{Shard: shard, Name: lc.Annotations["kcp.io/cluster"], Owner: string(owner.UID)})
			}
		}
	}
	return all
}

func (s *workspaceChurn) list(r *run, at *conn, path string, into any) {
	require.Eventually(r.t, func() bool {
		code, response, err := at.do(r.t.Context(), http.MethodGet, path, nil)
		return err == nil && code == http.StatusOK && json.Unmarshal(response, into) == nil
	}, testTimeout, 50*time.Millisecond, "failed to list %s", path)
}

// clear deletes all Workspaces with their logical clusters.
func (s *workspaceChurn) clear(r *run) {
	last := s.writer(r)
	require.Eventually(r.t, func() bool {
		all := s.inventory(r)
		for _, w := range all.Workspaces {
			last.request(r.t.Context(), history.Delete, w.Parent, w.Name, w)
		}
		return len(all.Workspaces)+len(all.Clusters) == 0
	}, testTimeout, 100*time.Millisecond, "workspaces or their logical clusters were not deleted")
}

// workspaceWriter creates Workspaces through the front-proxy, uses them as soon as they are Ready,
// and deletes them.
type workspaceWriter struct {
	*workspaceChurn

	rec   *recorder
	rng   *rand.Rand
	pause time.Duration
}

func (s *workspaceWriter) step(ctx context.Context) {
	parent := s.parents[[]string{"root", "shard-1"}[s.rng.IntN(2)]]
	name := s.names[s.rng.IntN(len(s.names))]
	o := s.request(ctx, history.Get, parent, name, history.Workspace{})
	switch {
	case o.Outcome == history.NotFound:
		if o = s.request(ctx, history.Create, parent, name, history.Workspace{}); o.Outcome == history.OK {
			s.useWhenReady(ctx, o)
		}
	case o.Outcome != history.OK || o.Seen.Terminating:
	case s.rng.IntN(2) == 0:
		s.remove(ctx, o.Seen)
	default:
		s.useWhenReady(ctx, o)
	}
}

// useWhenReady waits until a Workspace is Ready, uses it immediately, and reports whether this
// succeeded.
func (s *workspaceWriter) useWhenReady(ctx context.Context, o *history.WorkspaceOp) bool {
	this := o.Seen
	for deadline := time.Now().Add(testTimeout); !o.Seen.Ready; pace(ctx, upTo(s.rng, s.pause/8)) {
		o = s.request(ctx, history.Get, this.Parent, this.Name, history.Workspace{})
		removed := o.Outcome == history.NotFound || o.Outcome == history.OK && (o.Seen.UID != this.UID || o.Seen.Terminating)
		if removed || ctx.Err() != nil || time.Now().After(deadline) {
			return false
		}
	}
	secret := &object{Metadata: metav1.ObjectMeta{GenerateName: "used-"}}
	path := "/clusters/" + this.Parent + ":" + this.Name + secretsPath
	return s.use(ctx, o.Seen, http.MethodPost, path, secret, true)/100 == 2
}

// remove deletes a Workspace, waits until it is removed, and then sends a request to its logical
// cluster.
func (s *workspaceWriter) remove(ctx context.Context, this history.Workspace) {
	for deadline := time.Now().Add(testTimeout); ctx.Err() == nil && time.Now().Before(deadline); pace(ctx, upTo(s.rng, s.pause/4)) {
		o := s.request(ctx, history.Get, this.Parent, this.Name, history.Workspace{})
		switch {
		case o.Outcome == history.NotFound, o.Outcome == history.OK && o.Seen.UID != this.UID:
			if this.Cluster != "" {
				s.use(ctx, this, http.MethodGet, "/clusters/"+this.Cluster+logicalClustersPath+"/"+corev1alpha1.LogicalClusterName, nil, false)
			}
			return
		case o.Outcome == history.OK && !o.Seen.Terminating:
			this = o.Seen
			s.request(ctx, history.Delete, this.Parent, this.Name, this)
		}
	}
}

// use sends a request to a logical cluster, and returns the status code, or 0 without a response.
func (s *workspaceWriter) use(ctx context.Context, w history.Workspace, method, path string, body any, writes bool) int {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*opTimeout)
	defer cancel()
	u := &history.WorkspaceUse{ID: s.rec.id(), UID: w.UID, Cluster: w.Cluster, Writes: writes, Start: s.rec.now()}
	code, response, err := s.proxy.do(ctx, method, path, body)
	u.End = s.rec.now()
	if err != nil {
		return 0
	}
	var o object
	if u.Code = code; code < http.StatusMultipleChoices && json.Unmarshal(response, &o) == nil {
		u.In = o.Metadata.Annotations["kcp.io/cluster"]
	}
	record(s.rec, &s.rec.history.WorkspaceUses, u)
	return code
}

// request sends a request for a Workspace and records the response. Deletions have a UID
// precondition.
func (s *workspaceWriter) request(ctx context.Context, kind history.Kind, parent, name string, of history.Workspace) *history.WorkspaceOp {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	path := "/clusters/" + parent + workspacesPath
	method, body := http.MethodGet, any(nil)
	switch kind {
	case history.Create:
		method, body = http.MethodPost, &object{APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "Workspace", Metadata: metav1.ObjectMeta{Name: name}}
	case history.Delete:
		method, body = http.MethodDelete, &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(of.UID)}
	default:
	}
	if kind != history.Create {
		path += "/" + name
	}
	o := &history.WorkspaceOp{ID: s.rec.id(), Parent: parent, Name: name, Kind: kind, Seen: of, Outcome: history.Unknown, Start: s.rec.now()}
	code, response, err := s.proxy.do(ctx, method, path, body)
	o.End = s.rec.now()
	var ws tenancyv1alpha1.Workspace
	switch {
	case err != nil:
	case code == http.StatusNotFound && concerns(response, name):
		o.Outcome = history.NotFound
	case code == http.StatusConflict && kind == history.Create:
		o.Outcome = history.Exists
	case code == http.StatusConflict:
		o.Outcome = history.Conflict
	case code < http.StatusMultipleChoices && json.Unmarshal(response, &ws) == nil && ws.Kind == "Workspace":
		o.Outcome, o.Seen = history.OK, seenWorkspace(parent, &ws)
		s.rec.setShard(ws.Spec.Cluster, ws.Annotations["core.kcp.io/shard"])
	case code < http.StatusMultipleChoices && kind == history.Delete:
		o.Outcome = history.OK
	}
	record(s.rec, &s.rec.history.WorkspaceOps, o)
	return o
}

// hasWorkspaceLifecycle reports whether a history contains workspaces that were used, and ones that
// were deleted with their logical cluster.
func hasWorkspaceLifecycle(h *history.History) bool {
	used := slices.ContainsFunc(h.WorkspaceUses, func(u *history.WorkspaceUse) bool { return u.Writes && u.In == u.Cluster })
	deleted := slices.ContainsFunc(h.WorkspaceUses, func(u *history.WorkspaceUse) bool { return !u.Writes && u.In == "" })
	return used && deleted && h.Inventory != nil && len(h.Inventory.Clusters) > 0
}

func seenWorkspace(parent string, ws *tenancyv1alpha1.Workspace) history.Workspace {
	return history.Workspace{
		Parent: parent, Name: ws.Name, UID: string(ws.UID), Cluster: ws.Spec.Cluster,
		Ready: ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady, Terminating: ws.DeletionTimestamp != nil,
	}
}
