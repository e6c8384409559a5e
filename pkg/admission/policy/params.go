package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// syncWait is how long the first write waits for the parameters of a policy.
const syncWait = time.Second

var errStopped = errors.New("the server does not run, or not any more")

// Params watches the parameters of policies: in each logical cluster the kinds
// that its policies name, and only while they do.
type Params struct {
	clients *client.Factory

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the life of the watches, which is that of Run
	watches sync.WaitGroup
	kinds   map[logicalcluster.Name]map[schema.GroupVersionKind]*param
}

// NewParams returns Params that watch nothing until they run.
func NewParams(clients *client.Factory) *Params {
	return &Params{clients: clients, kinds: map[logicalcluster.Name]map[schema.GroupVersionKind]*param{}}
}

// Run lets parameters be watched until ctx ends, and waits for the watches.
func (p *Params) Run(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	<-ctx.Done()
	// Nobody adds a watch after this: get looks at ctx under the lock.
	p.mu.Lock()
	p.kinds = map[logicalcluster.Name]map[schema.GroupVersionKind]*param{}
	p.mu.Unlock()
	p.watches.Wait()
	return nil
}

// Len returns the number of logical clusters whose parameters are watched.
func (p *Params) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kinds)
}

// param is a kind of parameters in one logical cluster. It is what upstream's
// dispatcher wants to know of it.
type param struct {
	meta.RESTMapper

	mapping  *meta.RESTMapping
	cluster  logicalcluster.Name
	informer *client.Informer[*unstructured.Unstructured]
	dynamic  dynamic.Interface
	cancel   context.CancelFunc
	// users are the plugins with policies that name the kind.
	users sets.Set[string]
}

// any reports whether something is watched in the logical cluster.
func (p *Params) any(cluster logicalcluster.Name) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kinds[cluster]) > 0
}

// get returns the parameters of a kind for a plugin, watched from now on.
func (p *Params) get(cluster logicalcluster.Name, plugin string, gvk schema.GroupVersionKind) (*param, error) {
	p.mu.Lock()
	ctx := p.ctx
	found := p.kinds[cluster][gvk]
	if found != nil {
		found.users.Insert(plugin)
	}
	p.mu.Unlock()
	if found != nil {
		return found, nil
	}
	if ctx == nil || ctx.Err() != nil {
		return nil, errStopped
	}
	opened, err := p.open(ctx, cluster, gvk)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("A policy's kind of parameters is not served", "cluster", cluster, "kind", gvk, "reason", err)
		return nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk)
	}
	param := p.start(ctx, opened, gvk, plugin)
	wait, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	// A failure shows when the policy is evaluated, as its own error.
	_ = param.informer.WaitForSync(wait)
	return param, nil
}

// open finds out which resource the kind is.
func (p *Params) open(ctx context.Context, cluster logicalcluster.Name, gvk schema.GroupVersionKind) (*param, error) {
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
	return &param{mapping: mapping, cluster: cluster, informer: informer, dynamic: clients, users: sets.New[string]()}, nil
}

// resourceOf asks a logical cluster which resource a kind is that can be watched.
func resourceOf(ctx context.Context, scope client.Scope, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	list, err := scope.Resources(ctx, gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	for i := range list.APIResources {
		r := &list.APIResources[i]
		if r.Kind != gvk.Kind || !slices.Contains(r.Verbs, "watch") || !slices.Contains(r.Verbs, "get") {
			continue
		}
		mapping := &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(r.Name), GroupVersionKind: gvk, Scope: meta.RESTScopeRoot}
		if r.Namespaced {
			mapping.Scope = meta.RESTScopeNamespace
		}
		return mapping, nil
	}
	return nil, fmt.Errorf("%s has no kind %s that can be watched", gvk.GroupVersion(), gvk.Kind)
}

// start runs the informer, unless another request was quicker.
func (p *Params) start(ctx context.Context, opened *param, gvk schema.GroupVersionKind, plugin string) *param {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.kinds[opened.cluster][gvk]; found != nil {
		found.users.Insert(plugin)
		return found
	}
	if ctx.Err() != nil {
		return opened // not run; nothing is written any more either
	}
	ctx, opened.cancel = context.WithCancel(ctx)
	opened.users.Insert(plugin)
	if p.kinds[opened.cluster] == nil {
		p.kinds[opened.cluster] = map[schema.GroupVersionKind]*param{}
	}
	p.kinds[opened.cluster][gvk] = opened
	p.watches.Go(func() {
		if err := opened.informer.Run(ctx); err != nil {
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
			param.cancel()
			delete(p.kinds[cluster], gvk)
		}
	}
	if len(p.kinds[cluster]) == 0 {
		delete(p.kinds, cluster)
	}
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
func (s paramSynced) HasSynced() bool { return s.p.informer.HasSynced() }

// Lister implements informers.GenericInformer.
func (p *param) Lister() cache.GenericLister { return paramLister{p: p} }

// paramLister reads the parameters of one namespace, or of all.
type paramLister struct {
	p         *param
	namespace string
}

// ByNamespace implements cache.GenericLister.
func (l paramLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return paramLister{p: l.p, namespace: namespace}
}

// Get implements cache.GenericLister.
func (l paramLister) Get(name string) (runtime.Object, error) {
	obj, err := l.p.informer.Lister().Cluster(l.p.cluster).Get(l.namespace, name)
	if err != nil {
		return nil, err
	}
	return obj, nil
}

// List implements cache.GenericLister.
func (l paramLister) List(selector labels.Selector) ([]runtime.Object, error) {
	lister := l.p.informer.Lister().Cluster(l.p.cluster)
	found := lister.List(selector)
	if l.namespace != "" {
		found = lister.ListNamespace(l.namespace, selector)
	}
	out := make([]runtime.Object, 0, len(found))
	for _, obj := range found {
		out = append(out, obj)
	}
	return out, nil
}
