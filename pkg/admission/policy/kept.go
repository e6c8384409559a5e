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
	// maxKeptBytes is how much memory the parameters of a logical cluster take that are kept: whoever
	// writes a policy names any kind, and all of its objects are watched. What is more is read.
	maxKeptBytes = 16 << 20
	// maxParameters is with how many parameters the policies of one kind may compare one write.
	maxParameters = 1000
)

var errManyParameters = fmt.Errorf("the write would be compared with more than %d parameters of policies: select fewer, or have fewer bindings", maxParameters)

// weigh has what an informer keeps counted.
func (p *Params) weigh(of *param, informer *client.Informer[*unstructured.Unstructured]) {
	informer.AddEventHandler(client.Handler[*unstructured.Unstructured]{
		OnAdd: func(obj *unstructured.Unstructured, _ bool) { p.count(of, remoteparams.Weigh(obj)) },
		OnUpdate: func(old, obj *unstructured.Unstructured) {
			p.count(of, remoteparams.Weigh(obj)-remoteparams.Weigh(old))
		},
		OnDelete: func(last *unstructured.Unstructured, _ bool) { p.count(of, -remoteparams.Weigh(last)) },
	})
}

// count counts bytes that came or went, and has the parameters read from now on where that is too much.
func (p *Params) count(of *param, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.informer.Load() == nil {
		return // events that were on their way
	}
	of.bytes += bytes
	p.kept[of.cluster] += bytes
	if p.kept[of.cluster] > maxKeptBytes {
		klog.V(2).InfoS("Parameters of policies are too large to be kept, and read from now on", "cluster", of.cluster, "kind", of.mapping.GroupVersionKind)
		p.release(of)
	}
}

// release ends the watch of a kind, and drops what is kept of it. The caller holds the lock.
func (p *Params) release(of *param) {
	of.unwatch()
	of.informer.Store(nil)
	if p.kept[of.cluster] -= of.bytes; p.kept[of.cluster] == 0 {
		delete(p.kept, of.cluster)
	}
	of.bytes = 0
}

// keptLister returns the parameters of one namespace, or of all, that an informer keeps.
type keptLister struct {
	informer  *client.Informer[*unstructured.Unstructured]
	cluster   logicalcluster.Name
	namespace string
}

// ByNamespace implements cache.GenericLister.
func (l keptLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	l.namespace = namespace
	return l
}

// Get implements cache.GenericLister.
func (l keptLister) Get(name string) (runtime.Object, error) {
	obj, err := l.informer.Lister().Cluster(l.cluster).Get(l.namespace, name)
	if err != nil {
		return nil, err
	}
	return obj, nil
}

// List implements cache.GenericLister.
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

// counted is a kind of parameters for one write, of which no more than left may be compared with it.
type counted struct {
	*param
	left  *int
	needs *needs
}

// needs are whether a write needs parameters that are not known yet: of a kind that was not read yet, or of a shard that
// does not answer.
type needs struct{ unsynced, unread atomic.Bool }

// Lister implements informers.GenericInformer.
func (c counted) Lister() cache.GenericLister {
	return countedLister{c.param.Lister(), c.left, c.needs}
}

// Informer implements informers.GenericInformer. It is asked for the parameters of policies that match the write.
func (c counted) Informer() cache.SharedIndexInformer {
	return neededSynced{c.param.Informer(), c.needs}
}

type neededSynced struct {
	cache.SharedIndexInformer
	needs *needs
}

// HasSynced implements cache.SharedInformer. The last answer counts.
func (s neededSynced) HasSynced() bool {
	synced := s.SharedIndexInformer.HasSynced()
	s.needs.unsynced.Store(!synced)
	return synced
}

// countedLister counts what it returns.
type countedLister struct {
	lister cache.GenericNamespaceLister
	left   *int
	needs  *needs
}

// ByNamespace implements cache.GenericLister.
func (l countedLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	if of, ok := l.lister.(cache.GenericLister); ok {
		l.lister = of.ByNamespace(namespace)
	}
	return l
}

// Get implements cache.GenericLister.
func (l countedLister) Get(name string) (runtime.Object, error) {
	if err := l.take(1); err != nil { // one that is missing costs no less
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

// List implements cache.GenericLister.
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
