package mcprovider

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shardplane/shardplane/pkg/client"
)

// cacheOf reads the objects of a logical cluster while it is assigned to this replica. Objects may be loaded before that, and handlers of
// informers already receive them. The engagement ends if the logical cluster is reassigned.
type cacheOf struct {
	provider *Provider
	name     logicalcluster.Name
}

var _ ctrlcache.Cache = cacheOf{}

// Get implements ctrlclient.Reader.
func (c cacheOf) Get(ctx context.Context, key ctrlclient.ObjectKey, out ctrlclient.Object, opts ...ctrlclient.GetOption) error {
	if err := c.provider.owns(ctx, c.name); err != nil {
		return err
	}
	of, err := c.provider.keyOf(out)
	if err != nil {
		return err
	}
	k, err := c.provider.ready(ctx, of)
	if err != nil {
		return err
	}
	found, err := k.get(client.Key{Cluster: c.name, Namespace: key.Namespace, Name: key.Name})
	if err != nil {
		return err
	}
	o := (&ctrlclient.GetOptions{}).ApplyOptions(opts)
	shared := o.UnsafeDisableDeepCopy != nil && *o.UnsafeDisableDeepCopy
	if !shared {
		found = found.DeepCopyObject().(ctrlclient.Object)
	}
	to, from := reflect.ValueOf(out), reflect.ValueOf(found)
	if !from.Type().AssignableTo(to.Type()) {
		return fmt.Errorf("the cached objects are of type %T, not %T", found, out)
	}
	to.Elem().Set(from.Elem())
	if !shared {
		out.GetObjectKind().SetGroupVersionKind(of.GroupVersionKind)
	}
	return nil
}

// List implements ctrlclient.Reader.
func (c cacheOf) List(ctx context.Context, out ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
	if err := c.provider.owns(ctx, c.name); err != nil {
		return err
	}
	o := (&ctrlclient.ListOptions{}).ApplyOptions(opts)
	if o.Continue != "" {
		return errors.New("the cache does not support pages: list without Continue")
	}
	of, err := c.provider.keyOf(out)
	if err != nil {
		return err
	}
	of.Kind = strings.TrimSuffix(of.Kind, "List")
	k, err := c.provider.ready(ctx, of)
	if err != nil {
		return err
	}
	if err := k.unread(c.name); err != nil {
		return fmt.Errorf("listing %s of logical cluster %q: %w", of.GroupKind(), c.name, err)
	}
	found, err := c.selected(k, of, o)
	if err != nil {
		return err
	}
	if o.Limit > 0 && int64(len(found)) > o.Limit {
		found = found[:o.Limit]
	}
	items := make([]runtime.Object, 0, len(found))
	for _, obj := range found {
		var item runtime.Object = obj
		if o.UnsafeDisableDeepCopy == nil || !*o.UnsafeDisableDeepCopy {
			item = obj.DeepCopyObject()
			item.GetObjectKind().SetGroupVersionKind(of.GroupVersionKind)
		}
		items = append(items, item)
	}
	return meta.SetList(out, items)
}

// selected returns the selected objects of the logical cluster.
func (c cacheOf) selected(k kind, of kindKey, o *ctrlclient.ListOptions) ([]ctrlclient.Object, error) {
	var found []ctrlclient.Object
	if o.FieldSelector == nil || o.FieldSelector.Empty() {
		found = k.list(c.name)
	} else {
		var err error
		if found, err = c.byFields(k, of, o); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(found, func(obj ctrlclient.Object) bool {
		return o.Namespace != "" && obj.GetNamespace() != o.Namespace ||
			o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(obj.GetLabels()))
	}), nil
}

// byFields returns the objects with all field values, each by the index of the field.
func (c cacheOf) byFields(k kind, of kindKey, o *ctrlclient.ListOptions) ([]ctrlclient.Object, error) {
	var found []ctrlclient.Object
	for i, r := range o.FieldSelector.Requirements() {
		if r.Operator != selection.Equals && r.Operator != selection.DoubleEquals {
			return nil, fmt.Errorf("the cache only supports field selectors with equality, not %s %s %q", r.Field, r.Operator, r.Value)
		}
		having, err := k.byIndex(r.Field, indexKey(c.name, o.Namespace, r.Value))
		if err != nil {
			return nil, fmt.Errorf("%s has no index of field %q, which must be added by IndexField: %w", of.GroupKind(), r.Field, err)
		}
		if i == 0 {
			found = having
			continue
		}
		found = slices.DeleteFunc(found, func(obj ctrlclient.Object) bool { return !slices.Contains(having, obj) })
	}
	return found, nil
}

// GetInformer implements ctrlcache.Informers.
func (c cacheOf) GetInformer(ctx context.Context, obj ctrlclient.Object, opts ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	key, err := c.provider.keyOf(obj)
	if err != nil {
		return nil, err
	}
	return c.informer(ctx, key, opts)
}

// GetInformerForKind implements ctrlcache.Informers.
func (c cacheOf) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind, opts ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	key := kindKey{gvk, typed}
	if !c.provider.options.Scheme.Recognizes(gvk) {
		key.form = untyped
	}
	return c.informer(ctx, key, opts)
}

func (c cacheOf) informer(ctx context.Context, key kindKey, opts []ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	o := ctrlcache.InformerGetOptions{}
	for _, opt := range opts {
		opt(&o)
	}
	var k kind
	var err error
	if o.BlockUntilSynced != nil && !*o.BlockUntilSynced {
		k, err = c.provider.kind(key)
	} else {
		k, err = c.provider.ready(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	return informerOf{c, k}, nil
}

// RemoveInformer implements ctrlcache.Informers. It does nothing, because watches are for all logical clusters, and handlers are removed
// separately.
func (cacheOf) RemoveInformer(context.Context, ctrlclient.Object) error { return nil }

// IndexField implements ctrlclient.FieldIndexer, for all logical clusters.
func (c cacheOf) IndexField(ctx context.Context, obj ctrlclient.Object, field string, f ctrlclient.IndexerFunc) error {
	return c.provider.IndexField(ctx, obj, field, f)
}

// Start implements ctrlcache.Informers. The provider runs the informers.
func (cacheOf) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync implements ctrlcache.Informers.
func (c cacheOf) WaitForCacheSync(ctx context.Context) bool {
	for _, k := range c.provider.all() {
		if k.WaitForSync(ctx) != nil {
			return false
		}
	}
	return true
}
