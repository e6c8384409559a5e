package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/inprocess"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// local indexes the logical clusters of the shard: their objects, paths and whether they are inactive.
type local struct {
	shard           string
	clients         *client.Factory
	logicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	workspaces      *client.Informer[*tenancyv1alpha1.Workspace]
	index           *workspaceindex.Index
	// watches are the watches of users, which end if their logical cluster becomes inactive.
	watches *serving.OpenWatches
}

func newLocal(shard string, clients *client.Factory, informers *controllers.Informers) *local {
	l := &local{
		shard:           shard,
		clients:         clients,
		logicalClusters: informers.LogicalClusters,
		workspaces:      informers.Workspaces,
		index:           workspaceindex.NewWorkspaceIndex(),
		watches:         &serving.OpenWatches{},
	}
	l.logicalClusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(obj *corev1alpha1.LogicalCluster, _ bool) { l.upsertCluster(obj) },
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

// ready rejects external requests until hasSynced and bindings return true, because inactive and terminating logical
// clusters, and the consumers of exports, are unknown before. The informers need the shard's own requests.
func (l *local) ready(bindings func() bool) func(r *http.Request) error {
	return func(r *http.Request) error {
		if l.hasSynced() && bindings() || inprocess.Own(r.Context()) {
			return nil
		}
		return errNotSynced
	}
}

var errNotSynced error = request.Unavailable("not all logical clusters and APIBindings are loaded yet, try again")

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

// find returns the LogicalCluster, or nil if it is not on this shard. The informer may lag behind the creation.
func (l *local) find(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	if lc := l.get(name); lc != nil {
		return lc, nil
	}
	return l.read(ctx, name)
}

// optional returns nil without an error if an object was not found.
func optional[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // not found
	}
	return object, err
}

func (l *local) read(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc, err := kinds.LogicalClusters.In(l.clients.Cluster(name.Path())).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	if lc, err = optional(lc, err); err != nil {
		return nil, fmt.Errorf("reading the LogicalCluster: %w", err)
	}
	return lc, nil
}

type connections struct {
	// cache is nil without a cache server.
	cache         *health.CacheCheck
	lastHeartbeat atomic.Pointer[error]
}

func (c *connections) heartbeat(err error) { c.lastHeartbeat.Store(&err) }

// readinessWarnings returns the problems with other servers. alone is set if there is no other shard.
func (c *connections) readinessWarnings(alone bool) []string {
	var warnings []string
	reasons := c.cache.Reasons()
	if reason := reasons[replication.DefaultCacheName]; reason != "" {
		warnings = append(warnings, "cache: "+reason+", see the log of the shard")
	}
	if reasons != nil && len(reasons) == 0 && !alone {
		warnings = append(warnings, "cache: "+shardload.ReasonNoCache+", --cache-kubeconfig is not set although there are other shards")
	}
	if last := c.lastHeartbeat.Load(); last != nil && *last != nil {
		warnings = append(warnings, "root: "+reasonOf(*last)+", the shard failed to renew its heartbeat in root, see the log of the shard")
	}
	return warnings
}

func reasonOf(err error) string {
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return "Refused"
	}
	return "Unreachable"
}

// rootIdentities contains the last known identities of root's exports, by name. A recreated export gets its identity
// from the same secret. Without the last one until then, watches would never receive an object.
type rootIdentities struct{ last sync.Map }

// of returns the identity of an export of root, given the result of reading it, or a retriable error.
func (r *rootIdentities) of(name string, export *apisv1alpha2.APIExport, err error) (string, error) {
	switch {
	case err == nil && export.Status.IdentityHash != "":
		if last, ok := r.last.Load(name); !ok || last != export.Status.IdentityHash {
			r.last.Store(name, export.Status.IdentityHash)
		}
		return export.Status.IdentityHash, nil
	case err == nil:
		err = errors.New("status.identityHash is empty")
	case !apierrors.IsNotFound(err) && !errors.Is(err, client.ErrIncomplete):
		return "", fmt.Errorf("looking up the APIExport %s of root: %w", name, err)
	}
	if last, ok := r.last.Load(name); ok {
		identity, _ := last.(string)
		return identity, nil
	}
	return "", identityUnavailable(name, err)
}

func identityUnavailable(name string, err error) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("the identity of the APIExport %s of root is not available yet (%v), try again", name, err), 1)
}
