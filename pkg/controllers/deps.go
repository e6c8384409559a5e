package controllers

import (
	"context"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/apibinding"
	"github.com/shardplane/shardplane/pkg/controllers/cachedresource"
	"github.com/shardplane/shardplane/pkg/controllers/customresourcedefinition"
	"github.com/shardplane/shardplane/pkg/controllers/exportuse"
	"github.com/shardplane/shardplane/pkg/controllers/garbagecollector"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster"
	"github.com/shardplane/shardplane/pkg/controllers/mount"
	"github.com/shardplane/shardplane/pkg/controllers/rootca"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Deps is what a shard gives its controllers.
type Deps struct {
	Sources
	// Informers are those that NewInformers made of the same Sources. Whoever
	// starts the controllers runs them.
	Informers *Informers
	// BaseURL is where other servers reach the shard, ExternalURL is where users
	// reach its logical clusters.
	BaseURL, ExternalURL string
	// VirtualWorkspaceURL is where clients reach the virtual workspaces of the shard; BaseURL if it is
	// empty.
	VirtualWorkspaceURL string
	// Peers are all shards.
	Peers *peers.Book
	// Tokens makes the tokens that are kept in secrets; nil where the shard makes
	// none.
	Tokens serviceaccount.Issuer
	// RootCA is what clients verify servers with, for those secrets and for
	// namespaces; nil where they have to know themselves.
	RootCA *rootca.File
	// Resolve returns the logical cluster of an export.
	Resolve apibinding.Resolve
	// Bindings are the APIBindings of the shard, with the index apis.ExportIndex,
	// and APIs what they have bound.
	Bindings *client.Informer[*apisv1alpha2.APIBinding]
	APIs     APIs
	// BindsSystem is set if logical clusters bind what root exports of the system.
	BindsSystem bool
	// Definitions are the CustomResourceDefinitions of the shard.
	Definitions customresourcedefinition.Definitions
	// Replicated is what other shards are to know.
	Replicated *replication.Table
	// Garbage is what the garbage collector needs; nil where there is none.
	Garbage *garbagecollector.Config
	// Objects are what the shard stores, and Stored says what of it there is to be deleted.
	Objects reconcile.Objects
	Stored  purge.Stored
	// Unserved deletes what is stored of a logical cluster that has nothing else any more.
	Unserved logicalcluster.Unserved
	// Unreadable are the objects that cannot be read.
	Unreadable logicalcluster.Unreadable
	// Cached is what cached resources need.
	Cached Cached
	// Mounts are the objects that Workspaces mount.
	Mounts mount.Store
	// Subtrees are the sums of limited subtrees of workspaces.
	Subtrees *subtrees.Sums
	// Load returns what the shard holds, or nil as long as that is not known.
	Load func() *shardload.Load
	// Heartbeat is called with the result of each heartbeat.
	Heartbeat func(err error)
	// HomeCreators are the groups whose members may have home workspaces.
	HomeCreators []string
	// Bootstrapped is called once, when everything exists that a shard starts
	// with; it may be nil.
	Bootstrapped func()
	// Metrics registers metrics.
	Metrics prometheus.Registerer
}

// APIs are the bound APIs of a shard.
type APIs interface {
	apibinding.APIs
	apibinding.Storage
	exportuse.Consumers
	// Unpin deletes the copies of schemas that no binding has named for a while.
	Unpin(ctx context.Context) error
	// Convert has the shard's copy of a schema converted by rules.
	Convert(ctx context.Context, schema types.UID, rules *apisv1alpha1.APIConversionSpec) error
}

// Cached is what the controllers of cached resources need.
type Cached struct {
	Store        cachedresource.Store
	Publications Publications
	// Limit is how many objects a logical cluster may have replicated, and LimitBytes how many bytes
	// these may have; 0 is any number.
	Limit      int
	LimitBytes int64
}

// Publications are what cached resources have replicated.
type Publications interface {
	cachedresource.Publications
	// Selects reports whether an object is one that is to be replicated as a resource.
	Selects(replicated schema.GroupResource, obj metav1.Object) bool
}

func hasCache(d Deps) bool { return d.Cache != nil }

// after is a controller that runs once what it needs has synced.
func after(controller reconcile.Runnable, needs ...reconcile.Synced) reconcile.Made {
	return reconcile.Made{Runnable: controller, Needs: needs}
}
