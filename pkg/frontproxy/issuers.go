package frontproxy

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

func (rt *router) targetOf(path parsedPath) (string, bool) {
	prefix, _ := mappingOf(path.escaped)
	if to := rt.mapped.of(path.escaped, prefix); to != nil {
		segment, _, malformed := to.clusterIn(path.escaped)
		if malformed || segment == "" {
			return "", false
		}
		return clusterPath(segment)
	}
	return path.at.path, path.err == nil && path.at.valid && path.at.virtualWorkspace == nil
}

// workspaceIssuers returns the logical cluster of a request, and the issuers of its type. If the logical
// cluster is unknown, the lookup waits as long as for any user.
func (rt *router) workspaceIssuers(ctx context.Context) authn.Workspace {
	path, ok := rt.targetOf(recordFrom(ctx).path)
	if !ok {
		return authn.Workspace{}
	}
	resolver := rt.resolver
	target, outcome := resolver.index.Lookup(path)
	if !final(outcome) {
		release, ok := resolver.acquire(identity.Flow{}) // the user is not authenticated yet
		if !ok {
			return authn.Workspace{}
		}
		defer release()
		target, outcome = resolver.resolve(ctx, path, recordFrom(ctx).received, &user.DefaultInfo{Name: user.Anonymous})
	}
	if !known(outcome) {
		return authn.Workspace{}
	}
	w := authn.Workspace{Cluster: target.Cluster}
	isNew := time.Since(time.Unix(target.Created, 0)) < authn.NewFor
	t, f, coming := rt.typeOf(target, isNew)
	if t == nil {
		w.Incomplete = coming
		return w
	}
	for _, ref := range t.Spec.AuthenticationConfigurations {
		c, err := f.configurations.Lister().Get(client.Key{Cluster: logicalcluster.From(t), Name: ref.Name})
		if err != nil {
			w.Incomplete = w.Incomplete || isNew || !f.configurations.HasSynced()
			continue
		}
		w.Name(c)
	}
	return w
}

// typeOf returns the type of a logical cluster and the follower of its shard, or whether the type may appear later.
func (rt *router) typeOf(of workspaceindex.Target, isNew bool) (t *tenancyv1alpha1.WorkspaceType, f *follower, coming bool) {
	path, name := logicalcluster.NewPath(of.Type).Split()
	if name == "" {
		return nil, nil, false
	}
	at, outcome := rt.shards.index.Lookup(path.String())
	if !known(outcome) {
		return nil, nil, isNew
	}
	// The index may have been restored, and the shard not be followed yet.
	if f = rt.shards.follower(at.Shard); f == nil {
		return nil, nil, true
	}
	t, err := f.types.Lister().Get(client.Key{Cluster: at.Cluster, Name: tenancyv1alpha1.ObjectName(tenancyv1alpha1.WorkspaceTypeName(name))})
	return t, f, err != nil && (isNew || !f.types.HasSynced())
}

func (rt *router) reportIssuer(ctx context.Context, of *issuers.Configuration, fault string) error {
	cluster := logicalcluster.From(of)
	target, _ := rt.shards.index.Lookup(cluster.String())
	shard := rt.shards.book.Named(target.Shard)
	if shard == nil {
		return nil // the logical cluster was deleted
	}
	return events.Record(ctx, shard.Clients.Cluster(cluster.Path()), events.Event{
		About: issuers.Reference(of), Component: issuers.Component, Type: corev1.EventTypeWarning, Reason: issuers.Reason, Message: fault,
	}, fault)
}
