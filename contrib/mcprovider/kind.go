package mcprovider

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/shards"
)

// form is the Go representation of objects.
type form int8

const (
	typed form = iota
	untyped
	metadata
)

// kindKey identifies an informer.
type kindKey struct {
	schema.GroupVersionKind

	form form
}

// kind is the informer of a kind in all logical clusters.
type kind interface {
	client.Runner

	// add adds a listener. It receives existing objects first.
	add(l *listener)
	// remove removes a listener.
	remove(l *listener)
	get(key client.Key) (ctrlclient.Object, error)
	// list returns the objects of one logical cluster, or of all if it is "".
	list(cluster logicalcluster.Name) []ctrlclient.Object
	byIndex(index, value string) ([]ctrlclient.Object, error)
	addIndex(name string, f ctrlclient.IndexerFunc) error
	// unread returns an error if not all objects of a logical cluster have been read.
	unread(cluster logicalcluster.Name) error
	missing() []shards.Missing
	// syncedChannel is closed when all objects have been read.
	syncedChannel() <-chan struct{}
}

// runner adapts shards.Multi to client.Group.
type runner[T client.Object] struct {
	*shards.Multi[T]
}

// HasSynced implements client.Runner.
func (r runner[T]) HasSynced() bool { return r.Multi.HasSynced(shards.Reachable) }

// WaitForSync implements client.Runner.
func (r runner[T]) WaitForSync(ctx context.Context) error {
	return r.Multi.WaitForSync(ctx, shards.Reachable)
}

// kindOf is a kind with objects of type T.
type kindOf[T ctrlclient.Object] struct {
	runner[T]
	*dispatcher

	provider *Provider
	synced   <-chan struct{}
}

// formOf returns the representation of an object or list.
func formOf(obj runtime.Object) form {
	switch obj.(type) {
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return metadata
	case runtime.Unstructured:
		return untyped
	default:
		return typed
	}
}

// keyOf returns the kind of an object.
func (p *Provider) keyOf(obj runtime.Object) (kindKey, error) {
	gvk, err := apiutil.GVKForObject(obj, p.options.Scheme)
	return kindKey{gvk, formOf(obj)}, err
}

// kind returns the informer of a kind. It is started if it does not exist.
func (p *Provider) kind(key kindKey) (kind, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.kinds[key]; k != nil {
		return k, nil
	}
	k, err := p.open(key)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", key.GroupVersionKind, err)
	}
	for field, f := range p.indexes[key] {
		if err := k.addIndex(field, f); err != nil {
			return nil, err
		}
	}
	p.kinds[key] = k
	if p.start != nil {
		p.start(k)
	}
	return k, nil
}

// open returns a new informer.
func (p *Provider) open(key kindKey) (kind, error) {
	gvr, _ := meta.UnsafeGuessKindToResource(key.GroupVersionKind)
	if name := p.options.Resources[key.GroupKind()]; name != "" {
		gvr.Resource = name
	}
	switch key.form {
	case metadata:
		return newKind(p, key, func(scope client.Scope, o client.InformerOptions[*metav1.PartialObjectMetadata]) (*client.Informer[*metav1.PartialObjectMetadata], error) {
			return client.NewMetadataInformer(scope, gvr, o)
		})
	case untyped:
		return newKind(p, key, func(scope client.Scope, o client.InformerOptions[*unstructured.Unstructured]) (*client.Informer[*unstructured.Unstructured], error) {
			return client.NewDynamicInformer(scope, gvr, o)
		})
	default:
		var options []client.ResourceOption
		if obj, err := p.options.Scheme.New(key.GroupVersionKind); err == nil && hasProtobuf(obj) {
			options = append(options, client.WithProtobuf())
		}
		resource, err := client.ResourceOf(p.options.Scheme, key.GroupVersionKind, gvr.Resource, options...)
		if err != nil {
			return nil, err
		}
		return newKind(p, key, func(scope client.Scope, o client.InformerOptions[client.Object]) (*client.Informer[client.Object], error) {
			return resource.Informer(scope, o), nil
		})
	}
}

// hasProtobuf reports whether the Go type of a kind has methods for protobuf.
func hasProtobuf(obj runtime.Object) bool {
	_, ok := obj.(interface {
		Marshal() ([]byte, error)
		Unmarshal(data []byte) error
	})
	return ok
}

func newKind[T ctrlclient.Object](p *Provider, key kindKey, open shards.Open[T]) (kind, error) {
	multi, err := shards.NewWith(p.options.Shards, open, shards.Options[T]{
		Dial: p.options.Dial, Partition: p.options.Partition, Ranges: p.ranges(), Metrics: p.options.Metrics,
		Name:     fmt.Sprintf("%s (%s)", key.GroupKind(), [...]string{"typed", "unstructured", "metadata"}[key.form]),
		Informer: client.InformerOptions[T]{KeepManagedFields: p.options.KeepManagedFields},
	})
	if err != nil {
		return nil, err
	}
	k := &kindOf[T]{runner: runner[T]{multi}, dispatcher: newDispatcher(), provider: p}
	k.synced = multi.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, initial bool) { k.push(change{verb: added, obj: obj, initial: initial}) },
		OnUpdate: func(old, obj T) { k.push(change{verb: updated, old: old, obj: obj}) },
		OnDelete: func(last T, tombstone bool) { k.push(change{verb: deleted, obj: last, tombstone: tombstone}) },
	}).Synced()
	return k, nil
}

// Run implements client.Runner.
func (k *kindOf[T]) Run(ctx context.Context) error {
	var dispatching sync.WaitGroup
	defer dispatching.Wait()
	dispatching.Go(func() { k.dispatch(ctx, k.synced) })
	return k.Multi.Run(ctx)
}

func (k *kindOf[T]) add(l *listener) {
	k.Pause(func() { k.push(change{verb: joined, listener: l, present: k.list(l.cluster)}) })
}

func (k *kindOf[T]) get(key client.Key) (ctrlclient.Object, error) {
	obj, err := k.Lister().Get(key)
	return obj, err
}

func (k *kindOf[T]) list(cluster logicalcluster.Name) []ctrlclient.Object {
	if cluster == "" {
		return objects(k.Lister().List(nil))
	}
	return objects(k.Lister().InCluster(cluster, nil))
}

func (k *kindOf[T]) byIndex(index, value string) ([]ctrlclient.Object, error) {
	found, err := k.Lister().ByIndex(index, value)
	return objects(found), err
}

func objects[T ctrlclient.Object](of []T) []ctrlclient.Object {
	all := make([]ctrlclient.Object, 0, len(of))
	for _, obj := range of {
		all = append(all, obj)
	}
	return all
}

func (k *kindOf[T]) addIndex(field string, f ctrlclient.IndexerFunc) error {
	return k.AddIndexers(map[string]client.IndexFunc[T]{field: func(obj T) []string {
		cluster := logicalcluster.From(obj)
		values := f(obj)
		keys := make([]string, 0, 2*len(values))
		for _, value := range values {
			keys = append(keys, indexKey(cluster, "", value))
			if ns := obj.GetNamespace(); ns != "" {
				keys = append(keys, indexKey(cluster, ns, value))
			}
		}
		return keys
	}})
}

// indexKey returns the key of a value in an index, for a namespace, or for all if it is "".
func indexKey(cluster logicalcluster.Name, namespace, value string) string {
	return cluster.String() + "|" + namespace + "/" + value
}

// errNotRead is the error if objects may be missing.
var errNotRead = errors.New("its shard has not been read")

func (k *kindOf[T]) unread(cluster logicalcluster.Name) error {
	shard := k.provider.clusters.Lister().ShardOf(cluster)
	if shard == "" {
		_, err := k.provider.known(cluster)
		return err
	}
	informer := k.Of(shard)
	if informer == nil {
		return errNotRead
	}
	if !informer.HasSynced() {
		err := informer.LastError()
		if apierrors.IsNotFound(err) {
			return nil // the shard does not serve the kind
		}
		return errors.Join(errNotRead, err)
	}
	if k.provider.options.Ring != nil && !informer.LoadedRanges().Contains(marker(cluster)) {
		return client.ErrNotOwned // or not read yet after an assignment
	}
	return nil
}

func (k *kindOf[T]) missing() []shards.Missing { return k.Missing() }

func (k *kindOf[T]) syncedChannel() <-chan struct{} { return k.synced }

// IndexField implements multicluster.Provider. Indexes are for all logical clusters. If a field already has one, IndexField does nothing.
func (p *Provider) IndexField(_ context.Context, obj ctrlclient.Object, field string, f ctrlclient.IndexerFunc) error {
	key, err := p.keyOf(obj)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.indexes[key][field] != nil {
		return nil
	}
	if k := p.kinds[key]; k != nil {
		if err := k.addIndex(field, f); err != nil {
			return err
		}
	}
	if p.indexes[key] == nil {
		p.indexes[key] = map[string]ctrlclient.IndexerFunc{}
	}
	p.indexes[key][field] = f
	return nil
}

// ready returns the informer of a kind after it has read all objects.
func (p *Provider) ready(ctx context.Context, key kindKey) (kind, error) {
	k, err := p.kind(key)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	started := p.started
	p.mu.Unlock()
	if !started {
		return nil, &ctrlcache.ErrCacheNotStarted{}
	}
	return k, k.WaitForSync(ctx)
}
