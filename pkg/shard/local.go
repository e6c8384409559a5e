package shard

import (
	"context"
	"fmt"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/inprocess"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// local indexes the logical clusters of the shard: their objects, paths and whether they are inactive. It reads the
// shard's own API through informers.
type local struct {
	shard           string
	clients         *client.Factory
	logicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	workspaces      *client.Informer[*tenancyv1alpha1.Workspace]
	index           *workspaceindex.Index
	// watches are the watches of users, which end if their logical cluster becomes inactive.
	watches *serving.OpenWatches
}

func newLocal(shard string, clients *client.Factory, informers *controllers.Informers, watches *serving.OpenWatches) *local {
	l := &local{
		shard:           shard,
		clients:         clients,
		logicalClusters: informers.LogicalClusters,
		workspaces:      informers.Workspaces,
		index:           workspaceindex.NewWorkspaceIndex(),
		watches:         watches,
	}
	l.logicalClusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd: func(obj *corev1alpha1.LogicalCluster, _ bool) {
			l.upsertCluster(obj)
		},
		OnUpdate: func(_, obj *corev1alpha1.LogicalCluster) { l.upsertCluster(obj) },
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) {
			l.index.DeleteLogicalCluster(l.shard, logicalcluster.From(last))
		},
	})
	l.workspaces.AddEventHandler(client.Handler[*tenancyv1alpha1.Workspace]{
		OnAdd:    func(obj *tenancyv1alpha1.Workspace, _ bool) { l.upsertWorkspace(obj) },
		OnUpdate: func(_, obj *tenancyv1alpha1.Workspace) { l.upsertWorkspace(obj) },
		OnDelete: func(last *tenancyv1alpha1.Workspace, _ bool) {
			l.index.DeleteWorkspace(l.shard, logicalcluster.From(last), last.Name)
		},
	})
	return l
}

func (l *local) upsertCluster(obj *corev1alpha1.LogicalCluster) {
	l.index.UpsertLogicalCluster(l.shard, workspaceindex.LogicalClusterOf(obj))
	if corev1alpha1.IsLogicalClusterInactive(obj.Annotations) {
		l.watches.End(logicalcluster.From(obj))
	}
}

func (l *local) upsertWorkspace(obj *tenancyv1alpha1.Workspace) {
	l.index.UpsertWorkspace(l.shard, workspaceindex.WorkspaceOf(obj))
}

func (l *local) hasSynced() bool { return l.logicalClusters.HasSynced() && l.workspaces.HasSynced() }

// ready rejects external requests until hasSynced. Before, a path could not be resolved, an inactive logical cluster
// would be served, and one that is being deleted would accept new objects. The shard's own requests must pass, because
// the informers need them.
func (l *local) ready(r *http.Request) error {
	if l.hasSynced() || inprocess.Own(r.Context()) {
		return nil
	}
	return errNotSynced
}

var errNotSynced error = request.Unavailable("this shard has not loaded all of its logical clusters yet, try again")

// resolve resolves a path through workspaces of this shard. The front-proxy resolves all other paths.
func (l *local) resolve(path logicalcluster.Path) (logicalcluster.Name, bool) {
	target, outcome := l.index.Lookup(path.String())
	return target.Cluster, outcome == workspaceindex.Found || outcome == workspaceindex.Unavailable
}

// mounted returns the URL of a mounted path, which is empty while the mount is not ready.
func (l *local) mounted(path logicalcluster.Path) (url string, mounted bool) {
	target, outcome := l.index.Lookup(path.String())
	if outcome != workspaceindex.Mounted {
		return "", outcome == workspaceindex.Unmounted
	}
	return target.Mount, true
}

// get returns the LogicalCluster from the informer, or nil.
func (l *local) get(name logicalcluster.Name) *corev1alpha1.LogicalCluster {
	obj, err := l.logicalClusters.Lister().Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	if err != nil {
		return nil
	}
	return obj
}

func (l *local) has(name logicalcluster.Name) bool { return l.get(name) != nil }

// pathOf returns the canonical path of a logical cluster.
func (l *local) pathOf(name logicalcluster.Name) (string, bool) {
	obj := l.get(name)
	if obj == nil {
		return "", false
	}
	path, ok := obj.Annotations[core.LogicalClusterPathAnnotationKey]
	return path, ok && path != ""
}

func (l *local) inactive(name logicalcluster.Name) bool {
	obj := l.get(name)
	return obj != nil && corev1alpha1.IsLogicalClusterInactive(obj.Annotations)
}

// find returns the LogicalCluster, or nil if it is not on this shard. It reads from the API if the informer does not
// have it, because the informer may lag behind the creation.
func (l *local) find(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	if lc := l.get(name); lc != nil {
		return lc, nil
	}
	return l.read(ctx, name)
}

func (l *local) read(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc, err := kinds.LogicalClusters.In(l.clients.Cluster(name.Path())).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	switch {
	case err == nil:
		return lc, nil
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // not found
	default:
		return nil, fmt.Errorf("reading the LogicalCluster: %w", err)
	}
}
