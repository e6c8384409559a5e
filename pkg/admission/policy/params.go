package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/client"
)

// syncWait is how long the first write waits for the parameters of a policy.
const syncWait = time.Second

var (
	errStopped = fmt.Errorf("%w: the server does not run, or not any more", errUnknown)
	// errUnknown is wrapped by the errors of parameters that may exist.
	errUnknown = errors.New("the parameters of a policy are not known yet")
	errNoKind  = errors.New("has no kind that can be watched")
)

// isUnserved reports whether an error is the answer of a server that a kind does not exist. After any other error, it may.
func isUnserved(err error) bool {
	return apierrors.IsNotFound(err) || errors.Is(err, errNoKind) || errors.Is(err, remoteparams.ErrNotServed)
}

// Params knows the parameters of policies: in each logical cluster of the shard it watches the
// kinds that its policies name, and only while they do. Those on other shards are read, and those
// that are too large to be kept.
type Params struct {
	clients *client.Factory
	// remote reads on other shards, own on this one.
	remote, own *remoteparams.Cache

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the life of the watches, which is that of Run
	watches sync.WaitGroup
	kinds   map[logicalcluster.Name]map[schema.GroupVersionKind]*param
	// kept is how many bytes are kept of a logical cluster.
	kept map[logicalcluster.Name]int
}

// NewParams returns Params that watch nothing until they run. remote reads those of policies on
// other shards; nil where there are none.
func NewParams(clients *client.Factory, remote *remoteparams.Cache) *Params {
	return &Params{
		clients: clients, remote: remote, own: remoteparams.New(remoteparams.FromOwn(clients)),
		kinds: map[logicalcluster.Name]map[schema.GroupVersionKind]*param{}, kept: map[logicalcluster.Name]int{},
	}
}

// Run lets parameters be watched until ctx ends, and waits for the watches.
func (p *Params) Run(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	<-ctx.Done()
	// Nobody adds a watch after this: get looks at ctx under the lock.
	p.mu.Lock()
	p.kinds, p.kept = map[logicalcluster.Name]map[schema.GroupVersionKind]*param{}, map[logicalcluster.Name]int{}
	p.mu.Unlock()
	p.watches.Wait()
	p.own.Stop()
	if p.remote != nil {
		p.remote.Stop()
	}
	return nil
}

// Len returns the number of logical clusters whose parameters are known.
func (p *Params) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kinds)
}

// param is a kind of parameters in one logical cluster. It is what upstream's
// dispatcher wants to know of it.
type param struct {
	meta.RESTMapper

	// scope is where the parameters are, in namespaces or in none.
	scope   meta.RESTScope
	cluster logicalcluster.Name
	// shard is the other one that has the policies, and reads gets the parameters where they are.
	shard string
	reads *remoteparams.Kind
	// These are for parameters of the own shard.
	mapping *meta.RESTMapping
	dynamic dynamic.Interface
	// informer keeps them, unless they are too large, and has bytes.
	informer atomic.Pointer[client.Informer[*unstructured.Unstructured]]
	bytes    int
	// unwatch ends the watch.
	unwatch func()
	// users are the plugins with policies that name the kind.
	users sets.Set[string]
}

// any reports whether parameters of the logical cluster are known.
func (p *Params) any(cluster logicalcluster.Name) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kinds[cluster]) > 0
}

// get returns the parameters of a kind for a plugin: watched from now on, or read at the other
// shard that has the policies.
func (p *Params) get(cluster logicalcluster.Name, plugin string, gvk schema.GroupVersionKind, shard string) (*param, error) {
	p.mu.Lock()
	ctx := p.ctx
	found := p.use(cluster, plugin, gvk, shard)
	p.mu.Unlock()
	if found != nil {
		return found, nil
	}
	if ctx == nil || ctx.Err() != nil {
		return nil, errStopped
	}
	open := p.open
	if shard != "" {
		open = p.openRemote
	}
	opened, err := open(ctx, cluster, gvk, shard)
	if err != nil && !isUnserved(err) {
		return nil, fmt.Errorf("%w: %w", errUnknown, err)
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("A policy's kind of parameters is not served", "cluster", cluster, "kind", gvk, "reason", err)
		return nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk)
	}
	param := p.start(ctx, opened, gvk, plugin)
	informer := param.informer.Load()
	if informer == nil {
		return param, nil
	}
	wait, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	// A failure shows when the policy is evaluated, as its own error.
	_ = informer.WaitForSync(wait)
	return param, nil
}

// use returns the parameters that are known already. The caller holds the lock.
func (p *Params) use(cluster logicalcluster.Name, plugin string, gvk schema.GroupVersionKind, shard string) *param {
	found := p.kinds[cluster][gvk]
	switch {
	case found == nil:
		return nil
	case found.shard != shard: // the logical cluster is on another one by now
		p.forget(found, gvk)
		return nil
	default:
		found.users.Insert(plugin)
		return found
	}
}

// openRemote finds out which resource the kind is on another shard: one that every logical
// cluster has is what it is on this one, and others that shard has to know.
func (p *Params) openRemote(ctx context.Context, cluster logicalcluster.Name, gvk schema.GroupVersionKind, shard string) (*param, error) {
	if p.remote == nil {
		return nil, errors.New("parameters of other shards are not read")
	}
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	at := remoteparams.Location{Shard: shard, Cluster: cluster}
	var kind *remoteparams.Kind
	if mapping, err := resourceOf(ctx, p.clients.Cluster(cluster.Path()), gvk); err == nil {
		kind = p.remote.Known(at, mapping)
	} else if kind, err = p.remote.Kind(at, gvk, watchable); err != nil { //nolint:contextcheck // it is read for all who wait
		return nil, err
	}
	return &param{scope: kind.Scope, cluster: cluster, shard: shard, reads: kind, unwatch: func() {}, users: sets.New[string]()}, nil
}

// open finds out which resource the kind is on this shard.
func (p *Params) open(ctx context.Context, cluster logicalcluster.Name, gvk schema.GroupVersionKind, _ string) (*param, error) {
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	scope := p.clients.Cluster(cluster.Path())
	mapping, err := resourceOf(ctx, scope, gvk)
	if err != nil {
		return nil, err
	}
	clients, err := scope.Dynamic()
	if err != nil {
		return nil, err
	}
	informer, err := client.NewDynamicInformer(scope, mapping.Resource, client.InformerOptions[*unstructured.Unstructured]{})
	if err != nil {
		return nil, err
	}
	opened := &param{
		scope: mapping.Scope, mapping: mapping, cluster: cluster, dynamic: clients, unwatch: func() {}, users: sets.New[string](),
		reads: p.own.Known(remoteparams.Location{Cluster: cluster}, mapping),
	}
	opened.informer.Store(informer)
	p.weigh(opened, informer)
	return opened, nil
}

// resourceOf asks a logical cluster which resource a kind is that can be watched.
func resourceOf(ctx context.Context, scope client.Scope, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	list, err := scope.Resources(ctx, gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	r := watchable(list, gvk.Kind)
	if r == nil {
		return nil, fmt.Errorf("%s %w: %s", gvk.GroupVersion(), errNoKind, gvk.Kind)
	}
	mapping := &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(r.Name), GroupVersionKind: gvk, Scope: meta.RESTScopeRoot}
	if r.Namespaced {
		mapping.Scope = meta.RESTScopeNamespace
	}
	return mapping, nil
}

// watchable returns the resource of a kind that can be watched, or nil.
func watchable(list *metav1.APIResourceList, kind string) *metav1.APIResource {
	for i := range list.APIResources {
		r := &list.APIResources[i]
		if r.Kind == kind && slices.Contains(r.Verbs, "watch") && slices.Contains(r.Verbs, "get") {
			return r
		}
	}
	return nil
}

// start runs the informer, if there is one, unless another request was quicker.
func (p *Params) start(ctx context.Context, opened *param, gvk schema.GroupVersionKind, plugin string) *param {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.use(opened.cluster, plugin, gvk, opened.shard); found != nil {
		return found
	}
	if ctx.Err() != nil {
		return opened // not run; nothing is written any more either
	}
	opened.users.Insert(plugin)
	if p.kinds[opened.cluster] == nil {
		p.kinds[opened.cluster] = map[schema.GroupVersionKind]*param{}
	}
	p.kinds[opened.cluster][gvk] = opened
	informer := opened.informer.Load()
	if informer == nil {
		return opened
	}
	ctx, opened.unwatch = context.WithCancel(ctx)
	p.watches.Go(func() {
		if err := informer.Run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot watch parameters of policies", "cluster", opened.cluster, "kind", gvk)
		}
	})
	return opened
}

// keep stops the watches of kinds that no policy of the plugin names any more,
// and of no other plugin.
func (p *Params) keep(cluster logicalcluster.Name, plugin string, needed sets.Set[schema.GroupVersionKind]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for gvk, param := range p.kinds[cluster] {
		if needed.Has(gvk) {
			continue
		}
		param.users.Delete(plugin)
		if param.users.Len() == 0 {
			p.forget(param, gvk)
		}
	}
	if len(p.kinds[cluster]) == 0 {
		delete(p.kinds, cluster)
	}
}

// forget drops all that is known of a kind. The caller holds the lock.
func (p *Params) forget(param *param, gvk schema.GroupVersionKind) {
	p.release(param)
	param.reads.Forget()
	delete(p.kinds[param.cluster], gvk)
}

// RESTMapping implements meta.RESTMapper for the one kind.
func (p *param) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return p.mapping, nil
}

var (
	_ informers.GenericInformer = &param{}
	_ meta.RESTMapper           = &param{}
)

// Informer implements informers.GenericInformer, for its HasSynced.
func (p *param) Informer() cache.SharedIndexInformer { return paramSynced{p: p} }

type paramSynced struct {
	cache.SharedIndexInformer
	p *param
}

// HasSynced implements cache.SharedInformer.
func (s paramSynced) HasSynced() bool {
	informer := s.p.informer.Load()
	return informer == nil && s.p.reads != nil || informer != nil && informer.HasSynced()
}

// unknownParam is a kind of parameters of which nothing is known yet. It never syncs.
func unknownParam() *param { return &param{scope: meta.RESTScopeRoot} }

// Lister implements informers.GenericInformer.
func (p *param) Lister() cache.GenericLister {
	if informer := p.informer.Load(); informer != nil {
		return keptLister{informer: informer, cluster: p.cluster}
	}
	if p.reads == nil {
		return keptLister{} // which nobody asks before the kind is known
	}
	return p.reads.Lister()
}
