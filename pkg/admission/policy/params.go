package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/client"
)

// syncWait is the time that the first write waits for the parameters of a policy.
const syncWait = time.Second

var (
	errStopped = fmt.Errorf("%w: the server is not running", errUnknown)
	// errUnknown is wrapped by errors about parameters that may exist.
	errUnknown = errors.New("the parameters of a policy have not been read yet")
	errNoKind  = errors.New("has no kind that can be watched")
)

// isUnserved reports whether an error means that a kind does not exist. After any other error, it may exist.
func isUnserved(err error) bool {
	return apierrors.IsNotFound(err) || errors.Is(err, errNoKind) || errors.Is(err, remoteparams.ErrNotServed)
}

// Params provides the parameters of policies. It watches a kind in a logical cluster of the shard while policies name
// it. Parameters on other shards, and parameters that are too large to be cached, are read on demand.
type Params struct {
	logger  klog.Logger
	clients *client.Factory
	// remote reads from other shards, own from this one.
	remote, own *remoteparams.Cache

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // of Run, which ends the watches
	watches sync.WaitGroup
	kinds   map[logicalcluster.Name]map[schema.GroupVersionKind]*param
	// kept is the number of cached bytes of a logical cluster.
	kept map[logicalcluster.Name]int
}

// NewParams returns Params that watch nothing until they run. remote reads from other shards; it may be nil.
func NewParams(ctx context.Context, clients *client.Factory, remote *remoteparams.Cache) *Params {
	return &Params{
		logger: klog.FromContext(ctx), clients: clients, remote: remote,
		own:   remoteparams.NewParamCache(ctx, remoteparams.FromOwn(clients)),
		kinds: map[logicalcluster.Name]map[schema.GroupVersionKind]*param{}, kept: map[logicalcluster.Name]int{},
	}
}

// Run allows watches until ctx ends, and waits for their end.
func (p *Params) Run(ctx context.Context) {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	<-ctx.Done()
	// No watch is added after this, because start checks ctx with the lock held.
	p.mu.Lock()
	p.kinds, p.kept = map[logicalcluster.Name]map[schema.GroupVersionKind]*param{}, map[logicalcluster.Name]int{}
	p.mu.Unlock()
	p.watches.Wait()
	p.own.Stop()
	if p.remote != nil {
		p.remote.Stop()
	}
}

// param is a kind of parameters in one logical cluster, for upstream's dispatcher.
type param struct {
	meta.RESTMapper
	cache.SharedIndexInformer

	cluster logicalcluster.Name
	// shard is the other shard of the policies, or "". reads is used to read parameters on demand.
	shard string
	reads *remoteparams.Kind
	// The following fields are for parameters on this shard. informer is nil if they are too large to be cached.
	mapping  *meta.RESTMapping
	dynamic  dynamic.Interface
	informer atomic.Pointer[client.Informer[*unstructured.Unstructured]]
	bytes    int
	unwatch  func()
	// users are the plugins with policies that name the kind.
	users sets.Set[string]
}

// any reports whether parameters of the logical cluster are in use.
func (p *Params) any(cluster logicalcluster.Name) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kinds[cluster]) > 0
}

// get returns the parameters of a kind for a plugin, and starts to watch them if they are on this shard.
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
	opened, err := p.open(ctx, cluster, gvk, shard)
	if err != nil && !isUnserved(err) {
		return nil, fmt.Errorf("%w: %w", errUnknown, err)
	}
	if err != nil {
		p.logger.V(2).Info("Parameter kind of a policy is not served", "logicalCluster", cluster, "kind", gvk, "reason", err)
		return nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk)
	}
	param := p.start(ctx, opened, gvk, plugin)
	if informer := param.informer.Load(); informer != nil {
		wait, cancel := context.WithTimeout(ctx, syncWait)
		defer cancel()
		_ = informer.WaitForSync(wait) // if it fails, evaluation of the policy reports an error
	}
	return param, nil
}

// use returns parameters that are in use already. The lock must be held.
func (p *Params) use(cluster logicalcluster.Name, plugin string, gvk schema.GroupVersionKind, shard string) *param {
	found := p.kinds[cluster][gvk]
	switch {
	case found == nil:
		return nil
	case found.shard != shard: // the logical cluster has moved
		p.forget(found, gvk)
		return nil
	default:
		found.users.Insert(plugin)
		return found
	}
}

// open determines the resource of a kind. A kind that all logical clusters have is the same on another shard.
func (p *Params) open(ctx context.Context, cluster logicalcluster.Name, gvk schema.GroupVersionKind, shard string) (*param, error) {
	if shard != "" && p.remote == nil {
		return nil, errors.New("parameters on other shards are not supported")
	}
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	scope := p.clients.Cluster(cluster.Path())
	at := remoteparams.Location{Shard: shard, Cluster: cluster}
	opened := &param{cluster: cluster, shard: shard, unwatch: func() {}, users: sets.New[string]()}
	mapping, err := resourceOf(ctx, scope, gvk)
	if shard != "" {
		if err == nil {
			opened.reads = p.remote.Known(at, mapping)
			return opened, nil
		}
		opened.reads, err = p.remote.Kind(at, gvk) //nolint:contextcheck // the read is shared by several requests
		return opened, err
	}
	if err != nil {
		return nil, err
	}
	opened.mapping, opened.reads = mapping, p.own.Known(at, mapping)
	if opened.dynamic, err = scope.Dynamic(); err != nil {
		return nil, err
	}
	informer, err := client.NewDynamicInformer(scope, mapping.Resource, client.InformerOptions[*unstructured.Unstructured]{})
	if err != nil {
		return nil, err
	}
	opened.informer.Store(informer)
	p.weigh(opened, informer)
	return opened, nil
}

// resourceOf returns the watchable resource of a kind in a logical cluster.
func resourceOf(ctx context.Context, scope client.Scope, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	list, err := scope.Resources(ctx, gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	r := remoteparams.Watchable(list, gvk.Kind)
	if r == nil {
		return nil, fmt.Errorf("%s %w: %s", gvk.GroupVersion(), errNoKind, gvk.Kind)
	}
	mapping := &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(r.Name), GroupVersionKind: gvk, Scope: meta.RESTScopeRoot}
	if r.Namespaced {
		mapping.Scope = meta.RESTScopeNamespace
	}
	return mapping, nil
}

// start runs the informer, if there is one, unless a concurrent request has started it.
func (p *Params) start(ctx context.Context, opened *param, gvk schema.GroupVersionKind, plugin string) *param {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.use(opened.cluster, plugin, gvk, opened.shard); found != nil {
		return found
	}
	if ctx.Err() != nil {
		return opened // not started, because the server is shutting down
	}
	opened.users.Insert(plugin)
	if p.kinds[opened.cluster] == nil {
		p.kinds[opened.cluster] = map[schema.GroupVersionKind]*param{}
	}
	p.kinds[opened.cluster][gvk] = opened
	if informer := opened.informer.Load(); informer != nil {
		ctx, opened.unwatch = context.WithCancel(ctx)
		p.watches.Go(func() {
			if err := informer.Run(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to watch parameters of policies", "logicalCluster", opened.cluster, "kind", gvk)
			}
		})
	}
	return opened
}

// keep stops the watches of kinds that no policy of any plugin names. needed are the kinds of one plugin.
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

// forget drops a kind. The lock must be held.
func (p *Params) forget(param *param, gvk schema.GroupVersionKind) {
	p.release(param)
	param.reads.Forget()
	delete(p.kinds[param.cluster], gvk)
}

func (p *param) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return p.mapping, nil
}

func (p *param) Informer() cache.SharedIndexInformer { return p }

// HasSynced implements cache.SharedInformer, the only method of it that upstream's dispatcher calls.
func (p *param) HasSynced() bool {
	informer := p.informer.Load()
	return informer == nil && p.reads != nil || informer != nil && informer.HasSynced()
}

// unknownParam returns a kind of parameters that never syncs, because it is not known whether it exists.
func unknownParam() *param { return &param{} }

func (p *param) Lister() cache.GenericLister {
	if informer := p.informer.Load(); informer != nil {
		return keptLister{informer: informer, cluster: p.cluster}
	}
	if p.reads == nil {
		return keptLister{} // not used before the kind is known
	}
	return p.reads
}

const (
	// maxKeptBytes limits the cached parameters of a logical cluster, because a policy can name any kind. Parameters
	// beyond it are read on demand.
	//
	//reference:limit cluster | admission policies: memory of cached parameters | others are read for each write
	maxKeptBytes = 16 << 20
	// maxParameters is the number of parameters that the policies of one kind may use for one write.
	//
	//reference:limit request | admission policies: parameters that all mutating, or all validating, policies use | the policy fails
	maxParameters = 1000
)

var errManyParameters = fmt.Errorf("the policies use more than %d parameters for the write: select fewer parameters, or delete bindings", maxParameters)

// weigh counts the bytes that an informer caches.
func (p *Params) weigh(of *param, informer *client.Informer[*unstructured.Unstructured]) {
	informer.AddEventHandler(client.Handler[*unstructured.Unstructured]{
		OnAdd: func(obj *unstructured.Unstructured, _ bool) { p.count(of, remoteparams.Weigh(obj)) },
		OnUpdate: func(old, obj *unstructured.Unstructured) {
			p.count(of, remoteparams.Weigh(obj)-remoteparams.Weigh(old))
		},
		OnDelete: func(last *unstructured.Unstructured, _ bool) { p.count(of, -remoteparams.Weigh(last)) },
	})
}

// count adds to the cached bytes, and switches to reading on demand if they exceed the limit.
func (p *Params) count(of *param, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.informer.Load() == nil {
		return // late events of a stopped informer
	}
	of.bytes += bytes
	p.kept[of.cluster] += bytes
	if p.kept[of.cluster] > maxKeptBytes {
		p.logger.V(2).Info("Reading parameters of policies on demand because they are too large to be cached", "logicalCluster", of.cluster, "kind", of.mapping.GroupVersionKind)
		p.release(of)
	}
}

// release stops the watch of a kind and drops its cached objects. The lock must be held.
func (p *Params) release(of *param) {
	of.unwatch()
	of.informer.Store(nil)
	if p.kept[of.cluster] -= of.bytes; p.kept[of.cluster] == 0 {
		delete(p.kept, of.cluster)
	}
	of.bytes = 0
}

// keptLister lists cached parameters of one namespace, or of all namespaces.
type keptLister struct {
	informer  *client.Informer[*unstructured.Unstructured]
	cluster   logicalcluster.Name
	namespace string
}

func (l keptLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	l.namespace = namespace
	return l
}

func (l keptLister) Get(name string) (runtime.Object, error) {
	obj, err := l.informer.Lister().Cluster(l.cluster).Get(l.namespace, name)
	if err != nil {
		return nil, err
	}
	return obj, nil
}

func (l keptLister) List(selector labels.Selector) ([]runtime.Object, error) {
	lister := l.informer.Lister().Cluster(l.cluster)
	var found []*unstructured.Unstructured
	if l.namespace == "" {
		found = lister.List(selector)
	} else {
		found = lister.ListNamespace(l.namespace, selector)
	}
	if len(found) > remoteparams.MaxObjects {
		return nil, remoteparams.ErrTooMany
	}
	out := make([]runtime.Object, 0, len(found))
	for _, obj := range found {
		out = append(out, obj)
	}
	return out, nil
}

// counted is a kind of parameters for one write, which may use at most *remaining parameters.
type counted struct {
	*param
	remaining *int
	needs     *needs
}

// needs records whether a write needs parameters of a kind that has not synced, or of a shard that does not respond.
type needs struct{ unsynced, unread atomic.Bool }

func (c counted) Lister() cache.GenericLister {
	return countedLister{c.param.Lister(), c.remaining, c.needs}
}

// Informer implements informers.GenericInformer. Upstream calls it only if a policy matches the write.
func (c counted) Informer() cache.SharedIndexInformer { return c }

// HasSynced implements cache.SharedInformer. The last call determines unsynced.
func (c counted) HasSynced() bool {
	synced := c.param.HasSynced()
	c.needs.unsynced.Store(!synced)
	return synced
}

type countedLister struct {
	lister    cache.GenericNamespaceLister
	remaining *int
	needs     *needs
}

func (l countedLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	if of, ok := l.lister.(cache.GenericLister); ok {
		l.lister = of.ByNamespace(namespace)
	}
	return l
}

func (l countedLister) Get(name string) (runtime.Object, error) {
	if err := l.take(1); err != nil { // missing parameters count too
		return nil, err
	}
	obj, err := l.lister.Get(name)
	l.noteUnread(err)
	return obj, err
}

func (l countedLister) noteUnread(err error) {
	if errors.Is(err, remoteparams.ErrUnread) {
		l.needs.unread.Store(true)
	}
}

func (l countedLister) List(selector labels.Selector) ([]runtime.Object, error) {
	found, err := l.lister.List(selector)
	if err != nil {
		l.noteUnread(err)
		return nil, err
	}
	return found, l.take(len(found))
}

func (l countedLister) take(n int) error {
	if *l.remaining < n {
		return errManyParameters
	}
	*l.remaining -= n
	return nil
}
