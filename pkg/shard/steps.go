// Package shard is the server of a shard. It serves logical clusters, which it stores in etcd, and LIST and WATCH
// across all of them. It also runs the controllers of workspaces.
//
//	Options ─ Complete ─► CompletedOptions ─ New ─► Server ─ Run(ctx)
//
// Parts are started in this order: etcd, storage, informers, API server, controllers (parts.go). They are stopped in
// reverse order, because a part must not write to one that has stopped.
package shard

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/admission"
	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/cachedresources"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/pkg/virtual/replication"
)

// New constructs a Server in steps:
//
//	base ─► storedData ─► installation ─► boundResources ─► requestAccess ─► objectServers ─► Server
//
// Each step embeds the previous one and is constructed from it, so that a wrong order does not compile. The only
// exception is lateServers.

// base contains the options and everything that is independent of the stored data.
type base struct {
	options  CompletedOptions
	metrics  *prometheus.Registry
	group    *lifecycle.Group
	listener *serving.Listener
	// serving is the lifetime of watches and of the listener. It ends after all users of the API have stopped.
	serving     context.Context //nolint:containedctx // it outlives the context of Run
	stopServing context.CancelFunc
}

// storedData is the opened etcd. It contains no access to objects, which bindings determine.
type storedData struct {
	*base
	etcd       *etcd.Handle
	encryption *encryption.Providers
	starts     *etcd.Starts
	dataID     string
	unreadable *unreadable.Record
	usage      *usage.Counter
}

// installation is the content of this shard and of other servers, as far as informers and clients provide it.
type installation struct {
	*storedData
	sources        controllers.Sources
	informers      *controllers.Informers
	peers          *peers.Book
	remoteParams   *remoteparams.Cache
	local          *local
	subtrees       *subtrees.Sums
	connections    *connections
	rootIdentities rootIdentities
	rules          *rbac.Authorizer
	reviews        *reviews
}

// boundResources are the resources that logical clusters have because of APIBindings.
type boundResources struct {
	*installation
	late     *lateServers
	bindings *bindings.Index
	replicas *replication.Replicas
}

type requestAccess struct {
	*boundResources
	authentication          *authn.Authentication
	exportVirtualWorkspaces *apiexport.VirtualWorkspaces
	virtualWorkspaces       virtualWorkspaces
	// rights authorizes in the logical cluster of a request, and authorizer through virtual workspaces, too.
	rights, authorizer authorizer.Authorizer
}

type objectServers struct {
	*requestAccess
	admission       *admission.Admission
	backend         *storage.Backend
	customResources *customresource.Server
	cached          *cachedresources.Index
}

// Server is a shard that is ready to run. Either Run it or Close it.
type Server struct {
	*objectServers
	generic *genericapiserver.GenericAPIServer
	// bootstrapped is set when all objects of a new shard exist, and rulesReady when their rules have effect.
	bootstrapped, rulesReady atomic.Bool
}

// lateServers breaks cycles between components: it provides the components that store and serve objects to their own
// dependencies. For example, bindings determine claim labels and definitions, and read both from storage. Virtual
// workspaces authorize requests and serve discovery. New registers the servers before any component runs. A read
// before is a bug of New and panics.
type lateServers struct{ servers *objectServers }

func (l *lateServers) get() *objectServers {
	if l.servers == nil {
		panic("shard: a component used the servers of objects before New had registered them")
	}
	return l.servers
}

// builtIn reports whether the server itself defines a resource.
func (l *lateServers) builtIn(ctx context.Context, resource schema.GroupResource) bool {
	return l.get().customResources.BuiltIn(ctx, resource)
}

// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
func (l *lateServers) ServeDocuments(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool {
	return l.get().customResources.ServeDocuments(w, r, resources, all)
}
