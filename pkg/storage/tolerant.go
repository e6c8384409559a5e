package storage

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// A watch cache holds the objects of all tenants, and upstream fails the list that fills it if one
// object cannot be decoded: the resource would be unavailable to all of them, also after a restart.
// So lists of several logical clusters skip such objects. An object that cannot be decrypted is not
// skipped, because it is likely that a key or a KMS plugin is missing, and controllers would take all
// objects for deleted.

// tolerated is a list that skips what cannot be decoded.
type tolerated struct {
	// at is the object that the list is at, which upstream tells transformers only.
	at      value.Context
	skipped int
}

type toleratedKey struct{}

func toleratedFrom(ctx context.Context) *tolerated {
	t, _ := ctx.Value(toleratedKey{}).(*tolerated)
	return t
}

// listTolerant is a list of s that skips what cannot be decoded.
func listTolerant(ctx context.Context, s storage.Interface, key string, opts storage.ListOptions, list runtime.Object) error {
	t := &tolerated{}
	if err := s.GetList(context.WithValue(ctx, toleratedKey{}, t), key, opts, list); err != nil || t.skipped == 0 {
		return err
	}
	return dropNameless(list)
}

// dropNameless removes the placeholders of skipped objects from a list.
func dropNameless(list runtime.Object) error {
	pointer, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	items := reflect.ValueOf(pointer).Elem()
	kept := reflect.MakeSlice(items.Type(), 0, items.Len())
	for i := range items.Len() {
		object, err := meta.Accessor(items.Index(i).Addr().Interface())
		if err != nil {
			return fmt.Errorf("items of %T: %w", list, err)
		}
		if object.GetName() != "" {
			kept = reflect.Append(kept, items.Index(i))
		}
	}
	items.Set(kept)
	return nil
}

// notingTransformer notes which object a list is at.
type notingTransformer struct{ value.Transformer }

// TransformFromStorage implements value.Transformer.
func (n notingTransformer) TransformFromStorage(ctx context.Context, data []byte, of value.Context) (out []byte, stale bool, err error) {
	if t := toleratedFrom(ctx); t != nil {
		t.at = of
	}
	return n.Transformer.TransformFromStorage(ctx, data, of)
}

// tolerantDecoder returns a placeholder, which has no name, for what a tolerated list cannot decode.
type tolerantDecoder struct {
	etcd3.Decoder
	report func(key string, revision uint64, err error)
}

// DecodeListItem implements etcd3.Decoder.
func (d tolerantDecoder) DecodeListItem(ctx context.Context, data []byte, revision uint64, newItem func() runtime.Object) (runtime.Object, error) {
	obj, err := d.Decoder.DecodeListItem(ctx, data, revision, newItem)
	t := toleratedFrom(ctx)
	if err == nil || t == nil || t.at == nil {
		return obj, err
	}
	t.skipped++
	d.report(string(t.at.AuthenticatedData()), revision, err)
	return newItem(), nil
}

// recoveringCodec returns a panic over an object as an error: etcd watches decode in goroutines of their own.
// It notes that an object could not be decoded.
type recoveringCodec struct {
	runtime.Codec
	undecodable *atomic.Bool
}

// Decode implements runtime.Decoder.
func (c recoveringCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (obj runtime.Object, gvk *schema.GroupVersionKind, err error) {
	defer func() {
		if r := recover(); r != nil {
			obj, err = nil, unreadable.Recovered(r)
		}
		if err != nil {
			c.undecodable.Store(true)
		}
	}()
	return c.Codec.Decode(data, defaults, into)
}

// Encode implements runtime.Encoder.
func (c recoveringCodec) Encode(obj runtime.Object, w io.Writer) error { return c.Codec.Encode(obj, w) }

// reporter returns the function that records objects of a resource that cannot be decoded.
func (b *Backend) reporter(r resource, keys keyspace) func(key string, revision uint64, err error) {
	return func(key string, revision uint64, err error) {
		key = strings.TrimPrefix(key, b.cfg.Prefix)
		at, _ := ObjectKeyOf(keys.root, key)
		b.cfg.Unreadable.Add(unreadable.Object{
			Key: key, Revision: int64(revision), Resource: r.config.GroupResource, //nolint:gosec // revisions are positive
			Cluster: at.Cluster, Namespace: at.Namespace, Name: at.Name, Reason: unreadable.Undecodable, Message: err.Error(),
		})
	}
}

// Unreadable are the objects of a logical cluster that cannot be read and whose keys have a prefix;
// all for an empty one.
func (b *Backend) Unreadable(ctx context.Context, cluster logicalcluster.Name, prefix string) ([]unreadable.Object, error) {
	return b.cfg.Unreadable.Prune(ctx, cluster, prefix, func(ctx context.Context, key string) (int64, error) {
		response, err := b.cfg.Client.KV.Get(ctx, b.cfg.Prefix+key, clientv3.WithKeysOnly())
		if err != nil {
			return 0, fmt.Errorf("reading the revision of %s from etcd: %w", key, err)
		}
		if len(response.Kvs) == 0 {
			return 0, nil
		}
		return response.Kvs[0].ModRevision, nil
	})
}
