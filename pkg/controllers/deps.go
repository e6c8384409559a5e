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
	"github.com/shardplane/shardplane/pkg/controllers/garbagecollector"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster"
	"github.com/shardplane/shardplane/pkg/controllers/mount"
	"github.com/shardplane/shardplane/pkg/controllers/rootca"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Deps are the dependencies of the controllers. In configurations, Local is the field of Sources, unless specified
// otherwise.
type Deps struct {
	Sources
	// Informers are the result of NewInformers for the same Sources. The caller runs them.
	Informers *Informers
	// BaseURL is the address of the shard for other servers, ExternalURL the address of its logical clusters for users.
	BaseURL, ExternalURL string
	// VirtualWorkspaceURL is the address of the virtual workspaces of the shard; empty means BaseURL.
	VirtualWorkspaceURL string
	Peers               *peers.Book
	// Tokens issues the tokens in Secrets; nil disables them.
	Tokens serviceaccount.Issuer
	// RootCA is the CA for verifying the servers, which is published in Secrets and namespaces; it may be nil.
	RootCA *rootca.File
	// Resolve returns the logical cluster of an export.
	Resolve apibinding.Resolve
	// Bindings are the APIBindings of the shard, with the index apis.ExportIndex, and APIs the bound APIs.
	Bindings *client.Informer[*apisv1alpha2.APIBinding]
	APIs     APIs
	// BindsSystem is set if logical clusters bind the system APIs, which root exports.
	BindsSystem bool
	// Definitions are the CustomResourceDefinitions of the shard.
	Definitions customresourcedefinition.Definitions
	// Replicated are the replicated resources.
	Replicated *replication.Table
	// Garbage configures the garbage collector; nil disables it.
	Garbage *garbagecollector.Config
	// Objects is the storage of the shard, and Stored selects the stored objects to delete.
	Objects reconcile.Objects
	Stored  purge.Stored
	// Unserved deletes the stored objects of a logical cluster that no API serves any more.
	Unserved logicalcluster.Unserved
	// Unreadable are the objects that cannot be decoded.
	Unreadable logicalcluster.Unreadable
	Cached     Cached
	// Mounts gives access to the objects that Workspaces mount.
	Mounts mount.Store
	// Subtrees are the sums of limited workspace subtrees.
	Subtrees *subtrees.Sums
	// Load returns the load of the shard, or nil if it is unknown.
	Load func() *shardload.Load
	// Heartbeat is called with the result of each heartbeat.
	Heartbeat func(err error)
	// HomeCreators are the groups with the permission to have home workspaces.
	HomeCreators []string
	// Bootstrapped is called once, after the initial content of the shard was created; it may be nil.
	Bootstrapped func()
	Metrics      prometheus.Registerer
}

// APIs are the bound APIs of a shard.
type APIs interface {
	apibinding.APIs
	apibinding.Storage
	exportuses.Consumers
	// Unpin deletes copies of schemas that have not been bound for some time.
	Unpin(ctx context.Context) error
	// Convert applies conversion rules to the shard's copy of a schema.
	Convert(ctx context.Context, schema types.UID, rules *apisv1alpha1.APIConversionSpec) error
}

// Cached are the dependencies of the controllers of cached resources.
type Cached struct {
	Store        cachedresource.Store
	Publications Publications
	// Limit and LimitBytes limit the replicated objects of a logical cluster and their size; 0 means no limit.
	Limit      int
	LimitBytes int64
}

// Publications are the replicated selections of cached resources.
type Publications interface {
	cachedresource.Publications
	// Selects reports whether an object must be replicated as part of a resource.
	Selects(replicated schema.GroupResource, obj metav1.Object) bool
}

func hasCache(d Deps) bool { return d.Cache != nil }

// after returns a controller that starts after its prerequisites have synced.
func after(controller reconcile.Runnable, needs ...reconcile.Synced) reconcile.Made {
	return reconcile.Made{Runnable: controller, Needs: needs}
}

func owning(made reconcile.Made, informers ...client.Runner) (reconcile.Made, error) {
	made.Owns = informers
	return made, nil
}
