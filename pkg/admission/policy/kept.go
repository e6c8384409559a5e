package policy

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/client"
)

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
		klog.V(2).InfoS("Reading parameters of policies on demand because they are too large to be cached", "cluster", of.cluster, "kind", of.mapping.GroupVersionKind)
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

// counted is a kind of parameters for one write, which may use at most *left parameters.
type counted struct {
	*param
	left  *int
	needs *needs
}

// needs records whether a write needs parameters that have not been read yet, because their kind has not synced or
// their shard does not respond.
type needs struct{ unsynced, unread atomic.Bool }

func (c counted) Lister() cache.GenericLister {
	return countedLister{c.param.Lister(), c.left, c.needs}
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
	lister cache.GenericNamespaceLister
	left   *int
	needs  *needs
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
	if *l.left < n {
		return errManyParameters
	}
	*l.left -= n
	return nil
}
