package frontproxy

import (
	"context"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// follower keeps the index true to one shard at one address. It keeps what it
// knows while the shard is away, and, as at any former address, what it has known before,
// until the shard has been read. Of Workspaces and LogicalClusters it keeps no objects.
type follower struct {
	shard string

	workspaces *client.Follower[*tenancyv1alpha1.Workspace]
	clusters   *client.Follower[*corev1alpha1.LogicalCluster]
	// types name configurations.
	types          *client.Informer[*tenancyv1alpha1.WorkspaceType]
	configurations *client.Informer[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]

	// seen is which data that is, and host the shard's address.
	seen *dataSeen
	host string
	// began is when the shard began to be followed.
	began time.Time
}

// newFollower connects to nothing yet, but announces the shard to the index.
func newFollower(peer *peers.Peer, index *workspaceindex.Index, seen *dataSeen) *follower {
	to := sink{index: index, shard: peer.Name}
	_, host, _ := strings.Cut(peer.URL, "://")
	host, _, _ = strings.Cut(host, "/")
	index.UpsertShard(peer.Name, peer.URL)
	return &follower{
		shard: peer.Name, seen: seen, host: host, began: time.Now(),
		workspaces: kinds.Workspaces.Follower(peer.Clients.Wildcard(), "workspaces of shard "+peer.Name, workspaceSink{to}),
		clusters:   kinds.LogicalClusters.Follower(peer.Clients.Wildcard(), "logicalclusters of shard "+peer.Name, clusterSink{to}),
		types: kinds.WorkspaceTypes.Informer(peer.Clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{
			Name: "workspacetypes of shard " + peer.Name, Transform: slimType,
		}),
		configurations: kinds.WorkspaceAuthenticationConfigurations.Informer(peer.Clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]{
			Name: "workspaceauthenticationconfigurations of shard " + peer.Name,
		}),
	}
}

// run follows the shard until ctx is done. A follower of the same shard at another
// address must have ended. What the index knows stays.
func (f *follower) run(ctx context.Context) {
	group := &client.Group{}
	group.Add(f.workspaces, f.clusters, f.types, f.configurations)
	if err := group.Run(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot follow a shard", "shard", f.shard)
		<-ctx.Done()
	}
}

// synced reports whether everything the shard holds has been seen once.
func (f *follower) synced() bool { return f.workspaces.HasSynced() && f.clusters.HasSynced() }

// current reports whether everything that the shard held since this process follows it
// has been seen.
func (f *follower) current() bool { return f.workspaces.Current() && f.clusters.Current() }

// away returns since when the shard is not connected, or zero if it is.
func (f *follower) away() (at time.Time) {
	for _, since := range []func() (time.Time, error){f.workspaces.Unreachable, f.clusters.Unreachable} {
		if broke, why := since(); why != nil {
			at = later(at, broke)
		}
	}
	return at
}

// revisions returns up to where the index has what the shard holds; empty while that is read
// anew.
func (f *follower) revisions() (to workspaceindex.Revisions) {
	for kind, of := range f.kinds() {
		// In this order: of data that was seen before, a version is refused, and not taken for one of later data.
		to[kind].Data = f.seen.get(of)
	}
	to[workspaceindex.LogicalClusters].Version = f.clusters.ResourceVersion()
	to[workspaceindex.Workspaces].Version = f.workspaces.ResourceVersion()
	return to
}

// kinds returns what is followed for the index.
func (f *follower) kinds() map[workspaceindex.Kind]followed {
	return map[workspaceindex.Kind]followed{
		workspaceindex.LogicalClusters: {f.host, kinds.LogicalClusters.Resource},
		workspaceindex.Workspaces:      {f.host, kinds.Workspaces.Resource},
	}
}

// resume has the follower begin where the index is already.
func (f *follower) resume(at workspaceindex.Revisions) {
	if !at.Complete() {
		return
	}
	for kind, of := range f.kinds() {
		f.seen.set(of, at[kind].Data)
	}
	f.clusters.Resume(at[workspaceindex.LogicalClusters].Version)
	f.workspaces.Resume(at[workspaceindex.Workspaces].Version)
}

// failure returns why the shard cannot be read at the moment, or nil.
func (f *follower) failure() error {
	if err := f.workspaces.LastError(); err != nil {
		return err
	}
	return f.clusters.LastError()
}

// sink tells the index what a shard has.
type sink struct {
	index *workspaceindex.Index
	shard string
}

type workspaceSink struct{ sink }

func (s workspaceSink) Begin() { s.index.Begin(s.shard, workspaceindex.Workspaces) }
func (s workspaceSink) End()   { s.index.Sweep(s.shard, workspaceindex.Workspaces) }

func (s workspaceSink) Put(obj *tenancyv1alpha1.Workspace) {
	s.index.UpsertWorkspace(s.shard, workspaceindex.WorkspaceOf(obj))
}

func (s workspaceSink) Delete(last *tenancyv1alpha1.Workspace) {
	s.index.DeleteWorkspace(s.shard, logicalcluster.From(last), last.Name)
}

type clusterSink struct{ sink }

func (s clusterSink) Begin() { s.index.Begin(s.shard, workspaceindex.LogicalClusters) }
func (s clusterSink) End()   { s.index.Sweep(s.shard, workspaceindex.LogicalClusters) }

func (s clusterSink) Put(obj *corev1alpha1.LogicalCluster) {
	s.index.UpsertLogicalCluster(s.shard, workspaceindex.LogicalClusterOf(obj))
}

func (s clusterSink) Delete(last *corev1alpha1.LogicalCluster) {
	s.index.DeleteLogicalCluster(s.shard, logicalcluster.From(last))
}

// slimType keeps what says whom workspaces of the type know.
func slimType(obj *tenancyv1alpha1.WorkspaceType) (*tenancyv1alpha1.WorkspaceType, error) {
	slim := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
		Annotations: map[string]string{logicalcluster.AnnotationKey: logicalcluster.From(obj).String()},
	}}
	slim.Spec.AuthenticationConfigurations = obj.Spec.AuthenticationConfigurations
	return slim, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
